/* A std::pmr::unordered_map with strings and vectors in it, built once in the job and read by all
 * ranks.
 *
 *     mpicxx -std=c++17 word_map.cpp -o word_map $(pkg-config --cflags --libs hostbuf)
 *     hostbuf run -n 4 --host h0:2,h1:2 --size 64M -- ./word_map
 */
#include <cstdio>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include <hostbuf_mpi.h>
#include <hostbuf.hpp>

namespace {

/* Positions of each word. The map's strings and vectors also allocate from its arena. */
using index = std::pmr::unordered_map<std::pmr::string, std::pmr::vector<unsigned>>;

constexpr unsigned words = 20000;

/* Returns the same word in every rank, as if read from a file. Words are long enough that a
 * string allocates memory. */
std::string word(unsigned number)
{
    return "a word that stands in many places, number " + std::to_string(number * 2654435761u >> 20);
}

const index *fill(hostbuf::arena &arena)
{
    auto *made = arena.make<index>();
    made->reserve(5000);
    for (unsigned at = 0; at < words; at++) (*made)[std::pmr::string(word(at), &arena)].push_back(at);
    return made;
}

bool equal(const index &found)
{
    std::unordered_map<std::string, std::vector<unsigned>> own;
    for (unsigned at = 0; at < words; at++) own[word(at)].push_back(at);
    if (own.size() != found.size()) return false;
    for (const auto &[word, places] : own) {
        auto there = found.find(std::pmr::string(word));
        if (there == found.end() || !std::equal(places.begin(), places.end(), there->second.begin(), there->second.end()))
            return false;
    }
    return true;
}

int run()
{
    hostbuf::mpi_group group(MPI_COMM_WORLD);
    auto buffer = hostbuf::buffer::launched() ? hostbuf::buffer::attach() : hostbuf::buffer::allocate(group, 64 << 20);
    const index &found = buffer.initialize_job<index>(group, fill);
    auto proof = buffer.freeze(group);
    std::uint64_t wrong[1] = {equal(found) ? 0u : 1u};
    const hostbuf_collective *all = group;
    if (all->all_reduce(all->context, wrong, 1, HOSTBUF_SUM) != 0) return 1;
    if (group.rank() == 0) {
        std::printf("%zu different words of %u, in %zu ranks; %llu of them find something else; %s\n", found.size(), words,
                    group.size(), static_cast<unsigned long long>(wrong[0]), proof == HOSTBUF_SEALED ? "sealed" : "not sealed");
    }
    return wrong[0] != 0;
}

} // namespace

int main(int count, char **arguments)
{
    MPI_Init(&count, &arguments);
    int status = 1;
    try {
        status = run();
    } catch (const std::exception &error) {
        std::fprintf(stderr, "word_map: %s\n", error.what());
        MPI_Abort(MPI_COMM_WORLD, 1);
    }
    MPI_Finalize();
    return status;
}
