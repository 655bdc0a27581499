//! hostbuf in C, C++, Fortran and Python: the examples over every installed MPI with one
//! libhostbuf, the interfaces in one process, the pages in docs, and the contents of an
//! installation.

mod adopted_arrays;
mod copies;
mod debian_packages;
mod ends_in_flight;
mod examples;
mod gguf_model;
mod gpu_blocks;
mod gpu_sections;
mod guides;
mod installation;
mod installed;
mod interface;
mod loaded_tensors;
mod misuse;
mod modulefile;
mod pool;
mod python;
mod site_agents;
mod wheel;
