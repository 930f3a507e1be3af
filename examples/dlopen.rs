// What dlopen.c does, from Rust without a crate: `rustc dlopen.rs && ./dlopen`.
use std::ffi::CStr;
use std::mem::transmute;
use std::os::raw::{c_char, c_int, c_void};
use std::process::exit;

#[link(name = "dl")]
extern "C" {
    fn dlopen(file: *const c_char, mode: c_int) -> *mut c_void;
    fn dlsym(library: *mut c_void, name: *const c_char) -> *mut c_void;
    fn dlerror() -> *const c_char;
    fn dlclose(library: *mut c_void) -> c_int;
}
const RTLD_NOW: c_int = 2;
const RTLD_LOCAL: c_int = 0;

// Of the fwdmeta.h that these declarations were written from.
const VERSION: (i32, i32, i32) = (1, 0, 0);
const INVALID_BATCH: i32 = 3;
type VersionFunction = unsafe extern "C" fn() -> i32;
type StatusNameFunction = unsafe extern "C" fn(i32) -> *const c_char;

fn text(pointer: *const c_char) -> String {
    unsafe { CStr::from_ptr(pointer) }
        .to_string_lossy()
        .into_owned()
}

fn found(pointer: *mut c_void) -> *mut c_void {
    if pointer.is_null() {
        eprintln!("{}", text(unsafe { dlerror() }));
        exit(1);
    }
    pointer
}

fn main() {
    let same_major = unsafe {
        let library = found(dlopen(
            b"libfwdmeta.so.1\0".as_ptr().cast(),
            RTLD_NOW | RTLD_LOCAL,
        ));
        let version: VersionFunction =
            transmute(found(dlsym(library, b"fwdmeta_version\0".as_ptr().cast())));
        let status_name: StatusNameFunction = transmute(found(dlsym(
            library,
            b"fwdmeta_status_name\0".as_ptr().cast(),
        )));

        let v = version();
        println!(
            "libfwdmeta {}.{}.{}, written for {}.{}.{}; status {} is {}",
            v / 10000,
            v / 100 % 100,
            v % 100,
            VERSION.0,
            VERSION.1,
            VERSION.2,
            INVALID_BATCH,
            text(status_name(INVALID_BATCH))
        );
        dlclose(library);
        v / 10000 == VERSION.0
    };
    exit(if same_major { 0 } else { 1 });
}
