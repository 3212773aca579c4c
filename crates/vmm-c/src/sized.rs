//! Structs that begin with their size, so that they can grow without breaking programs that were
//! compiled with an earlier or later header.
//!
//! A struct from the caller that is shorter than ours lacks fields, which are then zero: all fields
//! mean their default when zero. One that is longer has fields that this library does not know: it
//! is refused unless they are zero. The manner is that of Linux's `copy_struct_from_user`. A struct
//! to the caller is cut, or its end filled with zeros.

use crate::error::Fault;

/// # Safety
/// The type is `repr(C)`, its first field is a `usize` with the struct's size, any bytes are a
/// value of it, and it has no padding.
pub(crate) unsafe trait SizedStruct: Copy {
    /// Reads a struct from the caller.
    ///
    /// # Safety
    /// `from` is NULL or points to as many readable bytes as its first field says.
    unsafe fn read_from(from: *const Self, name: &str) -> Result<Self, Fault> {
        let size = known_size(from.cast(), name)?;
        let own = size_of::<Self>();
        // SAFETY: all-zero bytes are a value of the type, as any are, by the trait's contract.
        let mut value: Self = unsafe { std::mem::zeroed() };
        // SAFETY: the caller of this function vouches for `size` bytes at `from`, and `value` has
        // `own`.
        unsafe {
            let target = (&raw mut value).cast::<u8>();
            std::ptr::copy_nonoverlapping(from.cast::<u8>(), target, size.min(own));
        }
        for at in own..size {
            // SAFETY: `at` is below `size`, for which the caller of this function vouches.
            if unsafe { from.cast::<u8>().add(at).read() } != 0 {
                return Err(Fault::argument(format!(
                    "{name} has {size} bytes of which this version of the library knows {own}, \
                     and uses others: install a later version"
                )));
            }
        }
        Ok(value)
    }

    /// Writes a struct to the caller, all but its size.
    ///
    /// # Safety
    /// `to` is NULL or points to as many writable bytes as its first field says.
    unsafe fn write_to(&self, to: *mut Self, name: &str) -> Result<(), Fault> {
        let size = known_size(to.cast_const().cast(), name)?;
        let first = size_of::<usize>();
        let own = size_of::<Self>().min(size);
        // SAFETY: the caller of this function vouches for `size` bytes at `to`. `own` is at most
        // that and at most the length of `self`, whose bytes are all initialised, for it has no
        // padding.
        unsafe {
            let source = std::ptr::from_ref(self).cast::<u8>();
            let target = to.cast::<u8>();
            std::ptr::copy_nonoverlapping(source.add(first), target.add(first), own - first);
            std::ptr::write_bytes(target.add(own), 0, size - own);
        }
        Ok(())
    }
}

/// No struct of this interface is longer, so a larger number was never set.
const LONGEST: usize = 1 << 12;

fn known_size(at: *const usize, name: &str) -> Result<usize, Fault> {
    if at.is_null() {
        return Err(Fault::argument(format!("{name} is NULL")));
    }
    if !at.is_aligned() {
        return Err(Fault::argument(format!("{name} is not aligned")));
    }
    // SAFETY: not NULL and aligned as checked; both callers got it from one who vouches that the
    // first field can be read.
    let size = unsafe { at.read() };
    if size < size_of::<usize>() || size > LONGEST {
        return Err(Fault::argument(format!(
            "the field size of {name} is {size}: set it to the sizeof of the struct"
        )));
    }
    Ok(size)
}

#[cfg(test)]
mod tests {
    use super::SizedStruct;

    #[repr(C)]
    #[derive(Clone, Copy, Debug, PartialEq)]
    struct Numbers<const N: usize> {
        size: usize,
        values: [u64; N],
    }

    // SAFETY: `size` comes first, and the rest is whole 64-bit integers, without padding.
    unsafe impl<const N: usize> SizedStruct for Numbers<N> {}

    fn numbers<const N: usize>(values: [u64; N]) -> Numbers<N> {
        Numbers { size: size_of::<Numbers<N>>(), values }
    }

    #[test]
    fn an_earlier_program_has_zeros_for_what_it_does_not_know() {
        let early = numbers([7]);
        // SAFETY: a struct that says its own size.
        let read = unsafe { Numbers::<3>::read_from((&raw const early).cast(), "x") };
        assert_eq!(read.unwrap().values, [7, 0, 0]);
    }

    #[test]
    fn a_later_program_is_understood_unless_it_uses_what_is_new() {
        let mut late = numbers([7, 8, 0, 0]);
        // SAFETY: a struct that says its own size.
        let read = unsafe { Numbers::<2>::read_from((&raw const late).cast(), "x") };
        assert_eq!(read.unwrap().values, [7, 8]);
        late.values[3] = 1;
        // SAFETY: a struct that says its own size.
        let read = unsafe { Numbers::<2>::read_from((&raw const late).cast(), "options") };
        assert!(read.unwrap_err().text.contains("options has 40 bytes"));
    }

    #[test]
    fn what_goes_out_is_cut_or_filled() {
        let value = numbers([1, 2]);
        let mut short = numbers([9]);
        // SAFETY: a struct that says its own size.
        unsafe { value.write_to((&raw mut short).cast(), "x") }.unwrap();
        assert_eq!(short, numbers([1]));
        let mut long = numbers([9, 9, 9]);
        // SAFETY: a struct that says its own size.
        unsafe { value.write_to((&raw mut long).cast(), "x") }.unwrap();
        assert_eq!(long, numbers([1, 2, 0]));
    }

    #[test]
    fn a_size_that_was_never_set_is_refused() {
        for size in [0, 7, 1 << 20] {
            let unset = Numbers::<1> { size, values: [0] };
            // SAFETY: the size is looked at, and nothing behind it.
            let read = unsafe { Numbers::<1>::read_from(&raw const unset, "x") };
            assert!(read.unwrap_err().text.contains("sizeof"));
        }
        // SAFETY: NULL is refused.
        assert!(unsafe { Numbers::<1>::read_from(std::ptr::null(), "x") }.is_err());
    }
}
