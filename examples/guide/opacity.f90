! Opacities by temperature and frequency: each rank computes the whole table for itself, and reads
! it.
module opacity_table
    use, intrinsic :: iso_c_binding
    implicit none
    integer, parameter :: temperatures = 400, frequencies = 1000
    real(c_double), allocatable :: opacity(:, :)

contains

    subroutine build()
        integer :: i, j
        allocate(opacity(temperatures, frequencies))
        do j = 1, frequencies
            do i = 1, temperatures
                opacity(i, j) = real(mod(i * 7 + j * 13, 101), c_double)
            end do
        end do
    end subroutine
end module

program radiation
    use mpi_f08
    use opacity_table
    implicit none
    integer        :: rank, size, j
    real(c_double) :: mine, all
    call MPI_Init()
    call MPI_Comm_rank(MPI_COMM_WORLD, rank)
    call MPI_Comm_size(MPI_COMM_WORLD, size)
    call build()
    mine = 0
    do j = 1 + rank, frequencies, size
        mine = mine + sum(opacity(:, j))
    end do
    call MPI_Reduce(mine, all, 1, MPI_DOUBLE_PRECISION, MPI_SUM, 0, MPI_COMM_WORLD)
    if (rank == 0) print "(a, f0.0, a, i0, a)", "opacities' sum ", all, " in ", size, " ranks"
    call MPI_Finalize()
end program
