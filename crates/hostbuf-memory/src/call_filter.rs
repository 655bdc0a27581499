//! A filter for system calls, as containers have one, for tests.

#![allow(unsafe_code, reason = "installs a program of the kernel's filter machine")]

/// A system call that fails with an errno.
pub(crate) struct Refusal {
    pub(crate) call: i64,
    /// An argument by its index, and the value for which alone the call fails.
    pub(crate) only_for: Option<(u32, u32)>,
    pub(crate) errno: i32,
}

impl Refusal {
    /// Makes the refusal of a system call with `EPERM`, as in a container without the capability
    /// SYS_NICE.
    pub(crate) fn not_permitted(call: i64) -> Refusal {
        Refusal { call, only_for: None, errno: libc::EPERM }
    }
}

/// Runs `work` in a new thread in which system calls are refused. Children of the thread inherit
/// the filter.
pub(crate) fn refusing<T: Send>(refusals: &[Refusal], work: impl FnOnce() -> T + Send) -> T {
    std::thread::scope(|scope| {
        let filtered = || {
            refusals.iter().for_each(install);
            work()
        };
        scope.spawn(filtered).join().expect("the work does not panic")
    })
}

/// Adds a filter to those of the calling thread.
fn install(refusal: &Refusal) {
    const CALL: u32 = 0;
    let argument = |index: u32| 16 + 8 * index;
    let load = |offset| line(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, offset);
    let equal = |value, skip| line(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, 0, skip, value);
    let answer = |value| line(libc::BPF_RET | libc::BPF_K, 0, 0, value);
    let mut program = vec![load(CALL)];
    match refusal.only_for {
        Some((index, value)) => {
            program.extend([equal(refusal.call as u32, 3), load(argument(index)), equal(value, 1)]);
        }
        None => program.push(equal(refusal.call as u32, 1)),
    }
    program.push(answer(libc::SECCOMP_RET_ERRNO | refusal.errno as u32));
    program.push(answer(libc::SECCOMP_RET_ALLOW));
    let filter = libc::sock_fprog { len: program.len() as u16, filter: program.as_mut_ptr() };
    // SAFETY: the kernel copies the program, which ends in answers.
    let installed = unsafe {
        libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0
            && libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const filter) == 0
    };
    assert!(installed, "{}", std::io::Error::last_os_error());
}

fn line(code: u32, jt: u8, jf: u8, k: u32) -> libc::sock_filter {
    libc::sock_filter { code: code as u16, jt, jf, k }
}
