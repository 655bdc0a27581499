"""Samples for scripts/check-exhaustive, and the self-test that runs them."""

# Each type that breaks the rule is in a line that ends with "<<", which is removed before the rule
# sees it; a sample without one must pass.
SAMPLES = [
    "pub enum A { <<\n    B,\n}\n",
    "#[non_exhaustive]\npub enum A {\n    B,\n}\n",
    "/// A kind.\n#[derive(Clone)]\n#[non_exhaustive]\n#[repr(u8)]\npub enum A {\n    B,\n}\n",
    "#[derive(\n    Clone,\n    Copy,\n)]\n#[non_exhaustive]\n#[cfg(\n    feature = \"a\"\n)]\npub enum A {}\n",
    "#[non_exhaustive]\npub enum A {}\npub enum B {} <<\n",
    "#[non_exhaustive]\npub struct A {\n    pub b: u32,\n}\n\npub enum B {} <<\n",
    # Attributes in the line of the type.
    "#[derive(Clone)] pub enum A { <<\n    B,\n}\n",
    "#[derive(Clone)] #[repr(C)] pub struct A(pub [u8; 4]); <<\n",
    "#[derive(\n    Clone,\n    Copy,\n)] pub enum A {} <<\n",
    "#[derive(Clone)] #[non_exhaustive] pub enum A {}\n#[non_exhaustive] pub struct B(pub u32);\n",
    "#[non_exhaustive]\n#[derive(\n    Clone,\n)] pub enum A {}\npub enum B {} <<\n",
    "// Exhaustive: a number, and nothing else.\n#[derive(Clone)] pub struct A(pub u32);\n",
    # The reason: a comment right above the type, with more than a word.
    "#[derive(Clone)]\n// Exhaustive: a device is available or it is not.\npub enum A {}\n",
    "// Exhaustive: a long reason, which\n// needs two lines.\npub enum A {}\n",
    "// Exhaustive\npub enum A {} <<\n",
    "// Exhaustive:\npub enum A {} <<\n",
    "// Exhaustive: yes\npub enum A {} <<\n",
    "// Exhaustive: a number, and nothing else.\n\npub enum A {} <<\n",
    "// Exhaustive: a number, and nothing else.\npub struct A(pub u32);\npub struct B(pub u32); <<\n",
    "/// Exhaustive: this is documentation.\npub enum A {} <<\n",
    "// Not exhaustive: it may grow.\npub enum A {} <<\n",
    "#[doc = \"#[non_exhaustive]\"]\npub enum A {} <<\n",
    "#[cfg_attr(feature = \"a\", non_exhaustive)]\npub enum A {} <<\n",
    # Structs, whose fields must all be public for the rule to apply.
    "pub struct A { <<\n    pub b: u32,\n    /// A field.\n    #[allow(dead_code)]\n    pub c: Vec<(u8, u8)>,\n}\n",
    "pub struct A {\n    pub b: u32,\n    c: u32,\n}\n",
    "pub struct A {\n    pub(crate) b: u32,\n}\n",
    "pub struct A(pub u32); <<\npub struct B(u32);\npub struct C;\npub struct D {}\n",
    "pub struct A<T: Fn(u32) -> u32>(pub T); <<\n",
    "pub struct A<'a, T, const N: usize> <<\nwhere\n    T: Fn(u32) -> u32,\n{\n    pub b: &'a [T; N],\n    pub c: fn(T) -> (u8, u8),\n}\n",
    "pub struct A(pub fn() -> Vec<u8>, u32);\n",
    "#[repr(C)]\npub union A { <<\n    pub b: u32,\n    pub c: f32,\n}\n",
    "#[repr(C)] pub union A { <<\n    pub b: u32,\n}\n",
    "pub union A {\n    b: u32,\n    pub c: f32,\n}\n",
    "// Exhaustive: a register of the device.\npub union A {\n    pub b: u32,\n}\n",
    # Types that are not public, and code that is none.
    "pub(crate) enum A {}\nenum B {}\npub(super) struct C(pub u32);\n",
    "const A: &str = \"\npub enum B {}\n\";\n/*\npub enum C {}\n*/\n// pub enum D {}\n",
    # Tests, which may stand anywhere.
    "#[cfg(test)]\nmod tests {\n    pub enum A {}\n}\n",
    "#[cfg(test)]\nmod tests {\n    pub enum A {}\n}\n\npub enum B {} <<\n",
    "#[cfg(test)]\nuse a::b;\n\npub enum A {} <<\n",
    "#[cfg(test)]\nmod tests;\npub enum A {} <<\n",
    "#[cfg(all(loom, test))]\n#[allow(a)]\nmod deep {\n    pub enum A {}\n}\npub enum B {} <<\n",
    "#[cfg(test)]\npub enum A {\n    B,\n}\npub struct C { <<\n    pub d: u32,\n}\n",
    "#[cfg(not(test))]\npub enum A {} <<\n",
    "mod a {\n    pub enum B {} <<\n    #[cfg(test)]\n    mod tests {\n        pub enum C {}\n    }\n    pub enum D {} <<\n}\n",
]


def run(violations):
    """Runs all samples, prints the ones that fail, and returns the exit status."""
    failures = 0
    for text in SAMPLES:
        lines = text.split("\n")
        expected = [number for number, line in enumerate(lines, 1) if line.endswith("<<")]
        found = [line for line, _ in violations("\n".join(line.removesuffix("<<").rstrip() for line in lines))]
        if found != expected:
            failures += 1
            print(f"check-exhaustive: lines {found} instead of {expected} in {text!r}")
    print(f"check-exhaustive: {len(SAMPLES)} samples, {failures} failures")
    return 1 if failures else 0
