//! What must not compile, with the compiler's words for it.

#[test]
fn misuse_does_not_compile() {
    trybuild::TestCases::new().compile_fail("cases/*.rs");
}
