! hostbuf for Fortran: the functions of hostbuf.h. Use c_f_pointer to access a buffer.
!
!     use hostbuf
!     type(hostbuf_options) :: options
!     type(c_ptr)           :: buffer, root
!     options%size = 64 * 1024_c_int64_t**2
!     call hostbuf_check(hostbuf_allocate(c_loc(group), options, buffer))
!
! Functions return a status, HOSTBUF_OK on success; hostbuf_check prints the message of an error and
! stops. Compile this file with the program, since module files depend on the compiler.
! hostbuf_mpi.f90 makes a group from a communicator of mpi_f08.
module hostbuf
    use, intrinsic :: iso_c_binding
    implicit none
    public

    integer(c_int), parameter :: HOSTBUF_OK = 0, HOSTBUF_INVALID = 1, HOSTBUF_UNSUPPORTED = 2, HOSTBUF_NO_SPACE = 3, &
        HOSTBUF_DISAGREED = 4, HOSTBUF_OS = 5, HOSTBUF_ATTACH_FAILED = 6, HOSTBUF_LOST = 7, HOSTBUF_CORRUPT = 8, &
        HOSTBUF_FULL = 9, HOSTBUF_FILL = 10, HOSTBUF_PEER = 11, HOSTBUF_FREEZE_FAILED = 12, HOSTBUF_REPLICATE_FAILED = 13, &
        HOSTBUF_COLLECTIVE_FAILED = 14, HOSTBUF_REGISTRATION = 15, HOSTBUF_BUDGET = 16, HOSTBUF_LIMIT = 17, &
        HOSTBUF_FORKED = 18, HOSTBUF_ELSEWHERE = 19, HOSTBUF_NOTHING = 20, HOSTBUF_DEFECT = 21, &
        HOSTBUF_JOB_FAILED = 22, HOSTBUF_TIMEOUT = 23, HOSTBUF_NO_BROKER = 24, HOSTBUF_REFUSED = 25, HOSTBUF_GONE = 26, &
        HOSTBUF_NOT_PUBLISHED = 27, HOSTBUF_QUOTA = 28, HOSTBUF_OUT_OF_RANGE = 29, HOSTBUF_INVALID_TOKEN = 30, &
        HOSTBUF_INVALID_HEADER = 31, HOSTBUF_CLOSED = 32, HOSTBUF_END_OF_FILE = 33, &
        HOSTBUF_CANCELLED = 34, HOSTBUF_GPU_FAILED = 35, HOSTBUF_DAMAGED = 36, HOSTBUF_CHANGED = 37
    integer(c_int), parameter :: HOSTBUF_MIN = 0, HOSTBUF_MAX = 1, HOSTBUF_SUM = 2, HOSTBUF_AND = 3
    integer(c_int), parameter :: HOSTBUF_PAGES_AUTO = 0, HOSTBUF_PAGES_SMALL = 1, HOSTBUF_PAGES_TRANSPARENT = 2, &
        HOSTBUF_PAGES_2M = 3, HOSTBUF_PAGES_1G = 4
    integer(c_int), parameter :: HOSTBUF_EMPTY = 0, HOSTBUF_FILLING = 1, HOSTBUF_FILLED = 2, HOSTBUF_FROZEN = 3
    integer(c_int), parameter :: HOSTBUF_SEALED = 0, HOSTBUF_WEAKER = 1
    integer(c_int), parameter :: HOSTBUF_READ = 0, HOSTBUF_WRITE = 1, HOSTBUF_REMOTE_READ = 2, HOSTBUF_REMOTE_WRITE = 5, &
        HOSTBUF_REMOTE_ATOMIC = 9
    integer(c_int), parameter :: HOSTBUF_MONITOR_DEFAULT = 0, HOSTBUF_MONITOR_STRICT = 1, &
        HOSTBUF_MONITOR_EXPLICIT = 2, HOSTBUF_MONITOR_REQUIRED = 3

    ! The types begin with the size of their fields, which tells the library the version that the
    ! program was compiled with. Leave struct_size as it is.

    ! The options of a new buffer. All options except the size have defaults.
    ! hostbuf_allocate_placed takes the name, the NUMA nodes and the sections as texts of Fortran.
    type, bind(c) :: hostbuf_options
        integer(c_size_t)  :: struct_size = 56
        integer(c_int64_t) :: size = 0
        type(c_ptr)        :: name = c_null_ptr
        integer(c_int32_t) :: pages = HOSTBUF_PAGES_AUTO
        logical(c_bool)    :: lazy = .false.
        logical(c_bool)    :: dump = .false.
        integer(c_int8_t)  :: reserved(2) = 0
        type(c_ptr)        :: numa = c_null_ptr
        type(c_ptr)        :: sections = c_null_ptr
        integer(c_size_t)  :: section_count = 0
    end type

    ! A section of a new buffer, in the array of hostbuf_options.
    type, bind(c) :: hostbuf_section_options
        integer(c_size_t)  :: struct_size = 32
        type(c_ptr)        :: name = c_null_ptr
        integer(c_int64_t) :: size = 0
        type(c_ptr)        :: numa = c_null_ptr
    end type

    ! A section of a new buffer, for hostbuf_allocate_placed: its name, its size in bytes, and its
    ! NUMA nodes, such as "0", "0,1" or "interleave". Blank text means the NUMA nodes of the buffer.
    type :: hostbuf_new_section
        character(64)      :: name = ""
        integer(c_int64_t) :: size = 0
        character(512)     :: numa = ""
    end type

    ! The properties and the state of a buffer.
    type, bind(c) :: hostbuf_info
        integer(c_size_t)  :: struct_size = 88
        type(c_ptr)        :: address = c_null_ptr
        integer(c_size_t)  :: size = 0
        type(c_ptr)        :: name = c_null_ptr
        integer(c_int)     :: pages = HOSTBUF_PAGES_AUTO
        integer(c_int64_t) :: huge_bytes = 0
        integer(c_int)     :: state = HOSTBUF_EMPTY
        integer(c_int64_t) :: generation = 0
        integer(c_int64_t) :: used = 0
        integer(c_int32_t) :: host = 0
        integer(c_int32_t) :: hosts = 0
        integer(c_int32_t) :: read_node = -1
        integer(c_int32_t) :: read_is_local = 0
    end type

    ! A section of a buffer: c_f_pointer(section%address, ...) returns its memory. The arrays nodes
    ! (c_int32_t), requested and obtained (c_int64_t) have node_count elements.
    type, bind(c) :: hostbuf_section_info
        integer(c_size_t) :: struct_size = 80
        type(c_ptr)       :: name = c_null_ptr
        type(c_ptr)       :: address = c_null_ptr
        integer(c_size_t) :: offset = 0
        integer(c_size_t) :: size = 0
        type(c_ptr)       :: numa = c_null_ptr
        integer(c_size_t) :: node_count = 0
        type(c_ptr)       :: nodes = c_null_ptr
        type(c_ptr)       :: requested = c_null_ptr
        type(c_ptr)       :: obtained = c_null_ptr
    end type

    ! A section of a buffer on one or several GPUs. The address is a device pointer. The arrays
    ! piece_gpus (c_int32_t) and piece_bytes (c_int64_t) have piece_count elements: the number of
    ! the GPU and the bytes of each piece.
    type, bind(c) :: hostbuf_gpu_section_info
        integer(c_size_t)  :: struct_size = 56
        type(c_ptr)        :: name = c_null_ptr
        integer(c_int64_t) :: address = 0
        integer(c_size_t)  :: bytes = 0
        type(c_ptr)        :: piece_gpus = c_null_ptr
        type(c_ptr)        :: piece_bytes = c_null_ptr
        integer(c_int32_t) :: piece_count = 0
        integer(c_int32_t) :: frozen = 0
    end type

    ! A group of ranks. The module hostbuf_mpi makes one from a communicator.
    type, bind(c) :: hostbuf_collective
        integer(c_size_t) :: struct_size = 88
        type(c_ptr)       :: context = c_null_ptr
        integer(c_size_t) :: rank = 0
        integer(c_size_t) :: size = 1
        type(c_funptr)    :: all_gather = c_null_funptr
        type(c_funptr)    :: broadcast = c_null_funptr
        type(c_funptr)    :: split = c_null_funptr
        type(c_funptr)    :: all_reduce = c_null_funptr
        type(c_funptr)    :: progress = c_null_funptr
        type(c_funptr)    :: release = c_null_funptr
        type(c_funptr)    :: describe = c_null_funptr
    end type

    ! The key of registered memory, for requests to the device.
    type, bind(c) :: hostbuf_key
        integer(c_size_t)  :: struct_size = 24
        integer(c_int64_t) :: device_address = 0
        integer(c_int32_t) :: local_key = 0
        integer(c_int32_t) :: remote_key = 0
    end type

    ! A lease of a registration. Do not copy it.
    type, bind(c) :: hostbuf_lease
        integer(c_size_t)  :: struct_size = 72
        integer(c_int64_t) :: held(6) = 0
        integer(c_int64_t) :: device_address = 0
        integer(c_int32_t) :: local_key = 0
        integer(c_int32_t) :: remote_key = 0
    end type

    ! The statistics of a cache. hostbuf.h describes the fields.
    type, bind(c) :: hostbuf_cache_stats
        integer(c_size_t)  :: struct_size = 120
        integer(c_int64_t) :: hits = 0
        integer(c_int64_t) :: coalesced = 0
        integer(c_int64_t) :: misses = 0
        integer(c_int64_t) :: evictions = 0
        integer(c_int64_t) :: invalidated = 0
        integer(c_int64_t) :: changed = 0
        integer(c_int64_t) :: not_kept = 0
        integer(c_int64_t) :: failures = 0
        integer(c_int64_t) :: leaked = 0
        integer(c_int64_t) :: over_budget = 0
        integer(c_size_t)  :: registrations = 0
        integer(c_size_t)  :: bytes = 0
        integer(c_size_t)  :: peak_registrations = 0
        integer(c_size_t)  :: peak_bytes = 0
    end type

    interface
        ! Returns whether a launcher has started this process. The result is the same in all ranks
        ! of a job.
        logical(c_bool) function hostbuf_launched() bind(c)
            import
        end function

        integer(c_int) function hostbuf_attach_c(name, to) bind(c, name="hostbuf_attach")
            import
            type(c_ptr), value       :: name
            type(c_ptr), intent(out) :: to
        end function

        ! group: c_loc of a hostbuf_collective, or c_null_ptr for this process alone.
        integer(c_int) function hostbuf_allocate(group, options, to) bind(c)
            import
            type(c_ptr), value                :: group
            type(hostbuf_options), intent(in) :: options
            type(c_ptr), intent(out)          :: to
        end function

        subroutine hostbuf_release(buffer) bind(c)
            import
            type(c_ptr), value :: buffer
        end subroutine

        type(c_ptr) function hostbuf_data(buffer) bind(c)
            import
            type(c_ptr), value :: buffer
        end function

        integer(c_size_t) function hostbuf_size(buffer) bind(c)
            import
            type(c_ptr), value :: buffer
        end function

        integer(c_int) function hostbuf_stat(buffer, to) bind(c)
            import
            type(c_ptr), value                :: buffer
            type(hostbuf_info), intent(inout) :: to
        end function

        integer(c_size_t) function hostbuf_section_count(buffer) bind(c)
            import
            type(c_ptr), value :: buffer
        end function

        ! index: from 0 to hostbuf_section_count(buffer) - 1.
        integer(c_int) function hostbuf_section_at(buffer, index, to) bind(c)
            import
            type(c_ptr), value                        :: buffer
            integer(c_size_t), value                  :: index
            type(hostbuf_section_info), intent(inout) :: to
        end function

        integer(c_int) function hostbuf_section_c(buffer, name, to) bind(c, name="hostbuf_section")
            import
            type(c_ptr), value                        :: buffer
            character(kind=c_char), intent(in)        :: name(*)
            type(hostbuf_section_info), intent(inout) :: to
        end function

        integer(c_int) function hostbuf_gpu_section_c(buffer, name, to) bind(c, name="hostbuf_gpu_section")
            import
            type(c_ptr), value                            :: buffer
            character(kind=c_char), intent(in)            :: name(*)
            type(hostbuf_gpu_section_info), intent(inout) :: to
        end function

        integer(c_int) function hostbuf_gpu_section_freeze_c(buffer, name, group, proof) &
            bind(c, name="hostbuf_gpu_section_freeze")
            import
            type(c_ptr), value                 :: buffer, group
            character(kind=c_char), intent(in) :: name(*)
            integer(c_int), intent(out)        :: proof
        end function

        integer(c_int) function hostbuf_replicate(buffer, group, root) bind(c)
            import
            type(c_ptr), value       :: buffer, group
            integer(c_size_t), value :: root
        end function

        integer(c_int) function hostbuf_freeze(buffer, group, proof) bind(c)
            import
            type(c_ptr), value          :: buffer, group
            integer(c_int), intent(out) :: proof
        end function

        ! fill: c_funloc of a function(arena, argument) result(root), all type(c_ptr), bind(c).
        integer(c_int) function hostbuf_initialize(buffer, fill, argument, root) bind(c)
            import
            type(c_ptr), value       :: buffer, argument
            type(c_funptr), value    :: fill
            type(c_ptr), intent(out) :: root
        end function

        integer(c_int) function hostbuf_initialize_job(buffer, group, fill, argument, root) bind(c)
            import
            type(c_ptr), value       :: buffer, group, argument
            type(c_funptr), value    :: fill
            type(c_ptr), intent(out) :: root
        end function

        integer(c_int) function hostbuf_root(buffer, root) bind(c)
            import
            type(c_ptr), value       :: buffer
            type(c_ptr), intent(out) :: root
        end function

        type(c_ptr) function hostbuf_arena_take(arena, size, alignment) bind(c)
            import
            type(c_ptr), value       :: arena
            integer(c_size_t), value :: size, alignment
        end function

        logical(c_bool) function hostbuf_arena_contains(arena, pointer, bytes) bind(c)
            import
            type(c_ptr), value       :: arena, pointer
            integer(c_size_t), value :: bytes
        end function

        subroutine hostbuf_arena_fail_c(arena, why) bind(c, name="hostbuf_arena_fail")
            import
            type(c_ptr), value                 :: arena
            character(kind=c_char), intent(in) :: why(*)
        end subroutine

        integer(c_int64_t) function hostbuf_arena_left(arena) bind(c)
            import
            type(c_ptr), value :: arena
        end function

        integer(c_int) function hostbuf_try_collective(group) bind(c)
            import
            type(c_ptr), value :: group
        end function

        integer(c_int) function hostbuf_leads(group, leads) bind(c)
            import
            type(c_ptr), value           :: group
            logical(c_bool), intent(out) :: leads
        end function

        integer(c_int) function hostbuf_device_probe_c(device) bind(c, name="hostbuf_device_probe")
            import
            character(kind=c_char), intent(in) :: device(*)
        end function

        integer(c_int) function hostbuf_device_name_c(device, name, size) bind(c, name="hostbuf_device_name")
            import
            type(c_ptr), value                  :: device
            character(kind=c_char), intent(out) :: name(*)
            integer(c_size_t), value            :: size
        end function

        integer(c_int) function hostbuf_device_open_c(device, to) bind(c, name="hostbuf_device_open")
            import
            character(kind=c_char), intent(in) :: device(*)
            type(c_ptr), intent(out)           :: to
        end function

        subroutine hostbuf_device_close(device) bind(c)
            import
            type(c_ptr), value :: device
        end subroutine

        integer(c_int) function hostbuf_register(buffer, device, offset, length, access, to) bind(c)
            import
            type(c_ptr), value       :: buffer, device
            integer(c_size_t), value :: offset, length
            integer(c_int), value    :: access
            type(c_ptr), intent(out) :: to
        end function

        integer(c_int) function hostbuf_registration_key(registration, to) bind(c)
            import
            type(c_ptr), value               :: registration
            type(hostbuf_key), intent(inout) :: to
        end function

        integer(c_int) function hostbuf_deregister(registration) bind(c)
            import
            type(c_ptr), value :: registration
        end function

        integer(c_int) function hostbuf_cache_open(device, registrations, bytes, monitor, to) bind(c)
            import
            type(c_ptr), value       :: device
            integer(c_size_t), value :: registrations, bytes
            integer(c_int), value    :: monitor
            type(c_ptr), intent(out) :: to
        end function

        subroutine hostbuf_cache_close(cache) bind(c)
            import
            type(c_ptr), value :: cache
        end subroutine

        integer(c_int) function hostbuf_cache_get(cache, start, length, access, lease) bind(c)
            import
            type(c_ptr), value                  :: cache, start
            integer(c_size_t), value            :: length
            integer(c_int), value               :: access
            type(hostbuf_lease), intent(inout)  :: lease
        end function

        integer(c_int) function hostbuf_cache_try_get(cache, start, length, access, lease) bind(c)
            import
            type(c_ptr), value                  :: cache, start
            integer(c_size_t), value            :: length
            integer(c_int), value               :: access
            type(hostbuf_lease), intent(inout)  :: lease
        end function

        integer(c_int) function hostbuf_cache_keep(cache, start, length, access) bind(c)
            import
            type(c_ptr), value       :: cache, start
            integer(c_size_t), value :: length
            integer(c_int), value    :: access
        end function

        integer(c_int) function hostbuf_cache_stat(cache, to) bind(c)
            import
            type(c_ptr), value                       :: cache
            type(hostbuf_cache_stats), intent(inout) :: to
        end function

        subroutine hostbuf_cache_put(lease) bind(c)
            import
            type(hostbuf_lease), intent(inout) :: lease
        end subroutine

        integer(c_int) function hostbuf_cache_invalidate(cache, start, length) bind(c)
            import
            type(c_ptr), value       :: cache, start
            integer(c_size_t), value :: length
        end function

        integer(c_int) function hostbuf_cache_flush(cache) bind(c)
            import
            type(c_ptr), value :: cache
        end function

        type(c_ptr) function hostbuf_message_c() bind(c, name="hostbuf_message")
            import
        end function

        type(c_ptr) function hostbuf_status_name_c(status) bind(c, name="hostbuf_status_name")
            import
            integer(c_int), value :: status
        end function
    end interface

contains

    ! Attaches to the buffer that the launcher mapped in this process before main; without a name,
    ! to the first one.
    integer(c_int) function hostbuf_attach(to, name) result(status)
        type(c_ptr), intent(out)               :: to
        character(*), intent(in), optional     :: name
        character(kind=c_char), allocatable, target :: words(:)
        if (present(name)) then
            allocate(words, source=hostbuf_text(name))
            status = hostbuf_attach_c(c_loc(words), to)
        else
            status = hostbuf_attach_c(c_null_ptr, to)
        end if
    end function

    ! Allocates a buffer as hostbuf_allocate. The name, the NUMA nodes and the sections replace
    ! those in options.
    integer(c_int) function hostbuf_allocate_placed(group, options, to, name, numa, sections) result(status)
        type(c_ptr), intent(in)                         :: group
        type(hostbuf_options), intent(in)               :: options
        type(c_ptr), intent(out)                        :: to
        character(*), intent(in), optional              :: name, numa
        type(hostbuf_new_section), intent(in), optional :: sections(:)
        type(hostbuf_options)                              :: own
        type(hostbuf_section_options), allocatable, target :: parts(:)
        character(kind=c_char), allocatable, target        :: own_name(:), own_numa(:), names(:, :), numas(:, :)
        integer                                            :: i, length
        own = options
        if (present(name)) then
            allocate(own_name, source=hostbuf_text(name))
            own%name = c_loc(own_name)
        end if
        if (present(numa)) then
            allocate(own_numa, source=hostbuf_text(numa))
            own%numa = c_loc(own_numa)
        end if
        if (present(sections)) then
            own%section_count = size(sections, kind=c_size_t)
            allocate(parts(size(sections)), names(65, size(sections)), numas(513, size(sections)))
            do i = 1, size(sections)
                length = len_trim(sections(i)%name) + 1
                names(:length, i) = hostbuf_text(sections(i)%name)
                parts(i)%name = c_loc(names(1, i))
                parts(i)%size = sections(i)%size
                length = len_trim(sections(i)%numa) + 1
                numas(:length, i) = hostbuf_text(sections(i)%numa)
                if (length > 1) parts(i)%numa = c_loc(numas(1, i))
            end do
            if (size(parts) > 0) own%sections = c_loc(parts)
        end if
        status = hostbuf_allocate(group, own, to)
    end function

    ! Returns the section of a buffer with this name in `to`.
    integer(c_int) function hostbuf_section(buffer, name, to) result(status)
        type(c_ptr), intent(in)                   :: buffer
        character(*), intent(in)                  :: name
        type(hostbuf_section_info), intent(inout) :: to
        status = hostbuf_section_c(buffer, hostbuf_text(name), to)
    end function

    ! Returns the GPU section of a buffer with this name in `to`.
    integer(c_int) function hostbuf_gpu_section(buffer, name, to) result(status)
        type(c_ptr), intent(in)                       :: buffer
        character(*), intent(in)                      :: name
        type(hostbuf_gpu_section_info), intent(inout) :: to
        status = hostbuf_gpu_section_c(buffer, hostbuf_text(name), to)
    end function

    ! Makes a GPU section read-only in all ranks of a group: c_loc of a hostbuf_collective, or
    ! c_null_ptr for this process alone.
    integer(c_int) function hostbuf_gpu_section_freeze(buffer, name, group, proof) result(status)
        type(c_ptr), intent(in)     :: buffer, group
        character(*), intent(in)    :: name
        integer(c_int), intent(out) :: proof
        status = hostbuf_gpu_section_freeze_c(buffer, hostbuf_text(name), group, proof)
    end function

    ! Sets the message for a failure of the fill function. If the function then returns c_null_ptr,
    ! the calls of all ranks return this message.
    subroutine hostbuf_arena_fail(arena, why)
        type(c_ptr), intent(in)  :: arena
        character(*), intent(in) :: why
        call hostbuf_arena_fail_c(arena, hostbuf_text(why))
    end subroutine

    ! Checks whether this process can use a device. Returns HOSTBUF_OK or HOSTBUF_UNSUPPORTED;
    ! hostbuf_message returns the description or the reason.
    integer(c_int) function hostbuf_device_probe(device) result(status)
        character(*), intent(in) :: device
        status = hostbuf_device_probe_c(hostbuf_text(device))
    end function

    ! Returns the name of a device, for messages.
    function hostbuf_device_name(device) result(name)
        type(c_ptr), intent(in)   :: device
        character(:), allocatable :: name
        character(kind=c_char)    :: text(128)
        integer                   :: i
        name = ""
        if (hostbuf_device_name_c(device, text, size(text, kind=c_size_t)) /= HOSTBUF_OK) return
        do i = 1, size(text)
            if (text(i) == c_null_char) exit
            name = name // text(i)
        end do
    end function

    ! Opens a device, such as "mlock", "cuda" or "rdma:mlx5_0".
    integer(c_int) function hostbuf_device_open(device, to) result(status)
        character(*), intent(in) :: device
        type(c_ptr), intent(out) :: to
        status = hostbuf_device_open_c(hostbuf_text(device), to)
    end function

    ! Converts text to a C string: without trailing blanks, with a NUL at the end.
    pure function hostbuf_text(words) result(text)
        character(*), intent(in) :: words
        character(kind=c_char)   :: text(len_trim(words) + 1)
        integer                  :: i
        do i = 1, len_trim(words)
            text(i) = words(i:i)
        end do
        text(len_trim(words) + 1) = c_null_char
    end function

    ! Returns the message of this thread's last call that failed.
    function hostbuf_message() result(message)
        character(:), allocatable :: message
        message = hostbuf_words(hostbuf_message_c())
    end function

    ! Returns the name of a status, such as HOSTBUF_OK.
    function hostbuf_status_name(status) result(name)
        integer(c_int), intent(in) :: status
        character(:), allocatable  :: name
        name = hostbuf_words(hostbuf_status_name_c(status))
    end function

    ! Converts a C string of the library. c_null_ptr becomes empty text.
    function hostbuf_words(at) result(words)
        type(c_ptr), intent(in)         :: at
        character(:), allocatable       :: words
        character(kind=c_char), pointer :: text(:)
        integer, parameter              :: most = 8192
        integer                         :: length
        if (.not. c_associated(at)) then
            words = ""
            return
        end if
        call c_f_pointer(at, text, [most])
        length = 0
        do while (length < most)
            if (text(length + 1) == c_null_char) exit
            length = length + 1
        end do
        allocate(character(length) :: words)
        words = transfer(text(1:length), words)
    end function

    ! Returns if `status` is HOSTBUF_OK. Otherwise it prints the message and stops with status 1.
    subroutine hostbuf_check(status)
        use, intrinsic :: iso_fortran_env, only: error_unit
        integer(c_int), intent(in) :: status
        if (status == HOSTBUF_OK) return
        write (error_unit, "(a)") "hostbuf: " // hostbuf_message()
        error stop 1
    end subroutine
end module
