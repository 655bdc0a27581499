/* Index of the positions of each word in a text. Each rank builds and reads an index of its own. */
#include <cstdio>
#include <string>
#include <unordered_map>
#include <vector>

#include <mpi.h>

using word_index = std::unordered_map<std::string, std::vector<unsigned>>;

constexpr unsigned words = 100000;

static std::string word(unsigned number)
{
    return "a word that is long enough to have memory of its own, " + std::to_string(number % 5003);
}

static const word_index *build()
{
    auto *made = new word_index;
    made->reserve(6000);
    for (unsigned at = 0; at < words; at++) (*made)[word(at)].push_back(at);
    return made;
}

static void work(int rank, int size)
{
    const word_index &table = *build();
    unsigned long mine = 0, all = 0;
    for (unsigned at = rank; at < words; at += size) mine += table.at(word(at)).front();
    MPI_Reduce(&mine, &all, 1, MPI_UNSIGNED_LONG, MPI_SUM, 0, MPI_COMM_WORLD);
    if (rank == 0) std::printf("%zu different words, sum %lu, in %d ranks\n", table.size(), all, size);
}

int main(int count, char **arguments)
{
    int rank, size;
    MPI_Init(&count, &arguments);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    work(rank, size);
    MPI_Finalize();
}
