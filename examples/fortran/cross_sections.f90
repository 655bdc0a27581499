! A table of physics data, built once in the job and read by all ranks: cross sections by energy,
! for each nuclide.
!
!     mpifort hostbuf.f90 hostbuf_mpi.f90 cross_sections.f90 -o cross_sections \
!         $(pkg-config --libs hostbuf)
!     hostbuf run -n 4 --host h0:2,h1:2 --size 64M -- ./cross_sections
module cross_section_table
    use hostbuf
    implicit none
    integer, parameter :: nuclides = 60, energies = 2000

    ! The root of the buffer, which all ranks find: the addresses of the arrays.
    type, bind(c) :: table
        type(c_ptr) :: energy, section
    end type

contains

    pure real(c_double) function energy_of(i)
        integer, intent(in) :: i
        energy_of = 1.0e-5_c_double * exp(real(i - 1, c_double) * 0.0138_c_double)
    end function

    pure real(c_double) function section_of(i, nuclide)
        integer, intent(in) :: i, nuclide
        section_of = real(nuclide, c_double) / sqrt(energy_of(i)) + cos(real(i * nuclide, c_double))
    end function

    ! Runs in one rank.
    function fill(arena, unused) result(root) bind(c)
        type(c_ptr), value       :: arena, unused
        type(c_ptr)              :: root
        type(table), pointer     :: made
        real(c_double), pointer  :: energy(:), section(:, :)
        integer                  :: i, nuclide
        root = hostbuf_arena_take(arena, c_sizeof(table(c_null_ptr, c_null_ptr)), 64_c_size_t)
        if (.not. c_associated(root)) return
        call c_f_pointer(root, made)
        made%energy = hostbuf_arena_take(arena, 8_c_size_t * energies, 64_c_size_t)
        made%section = hostbuf_arena_take(arena, 8_c_size_t * energies * nuclides, 64_c_size_t)
        if (.not. (c_associated(made%energy) .and. c_associated(made%section))) then
            root = c_null_ptr
            return
        end if
        call c_f_pointer(made%energy, energy, [energies])
        call c_f_pointer(made%section, section, [energies, nuclides])
        do i = 1, energies
            energy(i) = energy_of(i)
        end do
        do nuclide = 1, nuclides
            do i = 1, energies
                section(i, nuclide) = section_of(i, nuclide)
            end do
        end do
    end function
end module

program cross_sections
    use mpi_f08
    use hostbuf
    use hostbuf_mpi
    use cross_section_table
    implicit none
    type(hostbuf_collective), target :: group
    type(hostbuf_options)            :: options
    type(hostbuf_info)               :: info
    type(c_ptr)                      :: buffer, root
    type(table), pointer             :: found
    real(c_double), pointer          :: energy(:), section(:, :)
    integer(c_int)                   :: proof
    integer                          :: rank, size, i, nuclide, wrong, all_wrong

    call MPI_Init()
    call MPI_Comm_rank(MPI_COMM_WORLD, rank)
    call MPI_Comm_size(MPI_COMM_WORLD, size)
    call hostbuf_mpi_collective(MPI_COMM_WORLD, group)
    if (hostbuf_launched()) then
        call hostbuf_check(hostbuf_attach(buffer))
    else
        options%size = 16 * 1024_c_int64_t**2
        call hostbuf_check(hostbuf_allocate(c_loc(group), options, buffer))
    end if
    call hostbuf_check(hostbuf_initialize_job(buffer, c_loc(group), c_funloc(fill), c_null_ptr, root))
    call hostbuf_check(hostbuf_freeze(buffer, c_loc(group), proof))
    call hostbuf_check(hostbuf_stat(buffer, info))

    call c_f_pointer(root, found)
    call c_f_pointer(found%energy, energy, [energies])
    call c_f_pointer(found%section, section, [energies, nuclides])
    wrong = count([(energy(i) /= energy_of(i), i = 1, energies)])
    do nuclide = 1, nuclides
        do i = 1, energies
            if (section(i, nuclide) /= section_of(i, nuclide)) wrong = wrong + 1
        end do
    end do
    call MPI_Allreduce(wrong, all_wrong, 1, MPI_INTEGER, MPI_SUM, MPI_COMM_WORLD)
    if (rank == 0) then
        print "(i0, a, i0, a, i0, a, i0, a, a)", nuclides, " nuclides at ", energies, " energies in ", size, " ranks; ", &
            all_wrong, " values are wrong; ", trim(merge("sealed    ", "not sealed", proof == HOSTBUF_SEALED))
        if (info%used < 8_c_int64_t * energies * (nuclides + 1)) error stop 1
        if (all_wrong > 0) error stop 1
    end if
    call hostbuf_release(buffer)
    call hostbuf_mpi_release(group)
    call MPI_Finalize()
end program
