! A hostbuf_collective over a communicator of mpi_f08. It calls the MPI of the program.
!
!     type(hostbuf_collective), target :: group
!     call hostbuf_mpi_collective(MPI_COMM_WORLD, group)
!     call hostbuf_check(hostbuf_allocate(c_loc(group), options, buffer))
!     call hostbuf_mpi_release(group)
module hostbuf_mpi
    use, intrinsic :: iso_c_binding
    use mpi_f08
    use hostbuf
    implicit none
    private
    public :: hostbuf_mpi_collective, hostbuf_mpi_release

    type :: communicator
        type(MPI_Comm) :: comm
    end type

    ! The maximum number of bytes of one call, since MPI counts in default integers.
    integer(c_size_t), parameter :: most = 2_c_size_t**30

contains

    ! Makes a group from a duplicate of `comm`, an intracommunicator. Collective. Call it after
    ! MPI_Init. Without `ierror`, the error handler of the communicator handles errors, as in MPI's
    ! own subroutines.
    subroutine hostbuf_mpi_collective(comm, group, ierror)
        type(MPI_Comm), intent(in)            :: comm
        type(hostbuf_collective), intent(out) :: group
        integer, intent(out), optional        :: ierror
        type(MPI_Comm)                        :: own
        logical                               :: inter
        integer                               :: code
        call MPI_Comm_test_inter(comm, inter, code)
        ! The two groups of an intercommunicator see only the ranks of each other.
        if (code == MPI_SUCCESS .and. inter) code = MPI_ERR_COMM
        if (code == MPI_SUCCESS) call MPI_Comm_dup(comm, own, code)
        if (code == MPI_SUCCESS) call make(own, group)
        if (present(ierror)) then
            ierror = code
        else if (code /= MPI_SUCCESS) then
            call MPI_Comm_call_errhandler(comm, code)
        end if
    end subroutine

    ! Frees the group. Collective. Call it before MPI_Finalize.
    subroutine hostbuf_mpi_release(group)
        type(hostbuf_collective), intent(inout) :: group
        if (c_associated(group%context)) call end_it(group%context)
        group = hostbuf_collective()
    end subroutine

    subroutine make(comm, group)
        type(MPI_Comm), intent(in)            :: comm
        type(hostbuf_collective), intent(out) :: group
        type(communicator), pointer           :: kept
        integer                               :: rank, size
        allocate(kept)
        kept%comm = comm
        call MPI_Comm_set_errhandler(comm, MPI_ERRORS_RETURN)
        call MPI_Comm_rank(comm, rank)
        call MPI_Comm_size(comm, size)
        group%context = c_loc(kept)
        group%rank = int(rank, c_size_t)
        group%size = int(size, c_size_t)
        group%all_gather = c_funloc(all_gather)
        group%broadcast = c_funloc(broadcast)
        group%split = c_funloc(split)
        group%all_reduce = c_funloc(all_reduce)
        group%progress = c_funloc(progress)
        group%release = c_funloc(end_it)
        group%describe = c_funloc(describe)
    end subroutine

    function of(context) result(comm)
        type(c_ptr), intent(in)     :: context
        type(MPI_Comm)              :: comm
        type(communicator), pointer :: kept
        call c_f_pointer(context, kept)
        comm = kept%comm
    end function

    integer(c_int) function all_gather(context, mine, bytes, all) bind(c)
        type(c_ptr), value             :: context, mine, all
        integer(c_size_t), value       :: bytes
        integer(c_int8_t), pointer     :: own(:), everybody(:)
        integer                        :: size, code
        all_gather = 1
        if (bytes > most) return
        call MPI_Comm_size(of(context), size)
        call c_f_pointer(mine, own, [bytes])
        call c_f_pointer(all, everybody, [bytes * size])
        call MPI_Allgather(own, int(bytes), MPI_BYTE, everybody, int(bytes), MPI_BYTE, of(context), code)
        all_gather = int(code, c_int)
    end function

    integer(c_int) function broadcast(context, data, bytes, root) bind(c)
        type(c_ptr), value         :: context, data
        integer(c_size_t), value   :: bytes, root
        integer(c_int8_t), pointer :: all(:)
        integer(c_size_t)          :: done, part
        integer                    :: code
        call c_f_pointer(data, all, [bytes])
        done = 0
        code = MPI_SUCCESS
        do while (done < bytes .and. code == MPI_SUCCESS)
            part = min(bytes - done, most)
            call MPI_Bcast(all(done + 1:done + part), int(part), MPI_BYTE, int(root), of(context), code)
            done = done + part
        end do
        broadcast = int(code, c_int)
    end function

    ! Reduces unsigned words. MIN and MAX compare them as signed words with the top bit flipped,
    ! which have the same order.
    integer(c_int) function all_reduce(context, words, count, how) bind(c)
        type(c_ptr), value              :: context, words
        integer(c_size_t), value        :: count
        integer(c_int), value           :: how
        integer(c_int64_t), pointer     :: all(:)
        integer(c_int64_t), allocatable :: combined(:)
        integer(c_int64_t)              :: top
        integer                         :: code
        type(MPI_Op)                    :: operation
        top = ibset(0_c_int64_t, 63)
        call c_f_pointer(words, all, [count])
        allocate(combined(count))
        operation = MPI_BAND
        if (how == HOSTBUF_MIN) operation = MPI_MIN
        if (how == HOSTBUF_MAX) operation = MPI_MAX
        if (how == HOSTBUF_SUM) operation = MPI_SUM
        if (how == HOSTBUF_MIN .or. how == HOSTBUF_MAX) then
            all = ieor(all, top)
            call MPI_Allreduce(all, combined, int(count), MPI_INTEGER8, operation, of(context), code)
            all = ieor(combined, top)
        else
            call MPI_Allreduce(all, combined, int(count), MPI_INTEGER8, operation, of(context), code)
            all = combined
        end if
        all_reduce = int(code, c_int)
    end function

    integer(c_int) function split(context, color, part) bind(c)
        type(c_ptr), value                    :: context
        integer(c_size_t), value              :: color
        type(hostbuf_collective), intent(out) :: part
        type(MPI_Comm)                        :: comm
        integer                               :: rank, code
        call MPI_Comm_rank(of(context), rank)
        call MPI_Comm_split(of(context), int(color), rank, comm, code)
        if (code == MPI_SUCCESS) call make(comm, part)
        split = int(code, c_int)
    end function

    subroutine progress(context) bind(c)
        type(c_ptr), value :: context
        logical            :: there
        call MPI_Iprobe(MPI_ANY_SOURCE, 0, of(context), there, MPI_STATUS_IGNORE)
    end subroutine

    subroutine describe(context, code, text, size) bind(c)
        type(c_ptr), value              :: context, text
        integer(c_int), value           :: code
        integer(c_size_t), value        :: size
        character(kind=c_char), pointer :: all(:)
        character(MPI_MAX_ERROR_STRING) :: words
        integer                         :: length, i, status
        call MPI_Error_string(int(code), words, length, status)
        if (status /= MPI_SUCCESS .or. size == 0 .or. .not. c_associated(context)) return
        call c_f_pointer(text, all, [size])
        length = min(length, int(size) - 1)
        do i = 1, length
            all(i) = words(i:i)
        end do
        all(length + 1) = c_null_char
    end subroutine

    subroutine end_it(context) bind(c)
        type(c_ptr), value          :: context
        type(communicator), pointer :: kept
        call c_f_pointer(context, kept)
        call MPI_Comm_free(kept%comm)
        deallocate(kept)
    end subroutine
end module
