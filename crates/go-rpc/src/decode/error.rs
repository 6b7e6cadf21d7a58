//! Limits of a stream, and its faults.

/// Limits on the memory that one stream costs its receiver. Go's own limit is 8 GiB for a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Bytes of one value on the wire, with the descriptors before and inside it.
    pub value: usize,
    /// Bytes of memory that one decoded value may take.
    pub memory: usize,
    /// Bytes of memory for all types that a stream describes, for as long as it lasts.
    pub types: usize,
    /// Maximum depth of nested values.
    pub depth: usize,
}

impl Default for Limits {
    /// 4 MiB on the wire, 16 MiB in memory, 256 KiB of types, 64 levels.
    fn default() -> Self {
        Self { value: 4 << 20, memory: 16 << 20, types: 256 << 10, depth: 64 }
    }
}

/// Why bytes are not a value. The stream can go on with the next message, as in Go; whether that is wise
/// depends on where the sender thinks that it is.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// The bytes end inside a value.
    #[error("gob: the message ends inside a value")]
    Truncated,
    /// Integers have at most eight bytes.
    #[error("gob: an integer of {length} bytes: at most 8 are possible")]
    IntegerTooLong {
        /// The bytes that it claims to have.
        length: usize,
    },
    /// A descriptor that is none.
    #[error("gob: malformed type descriptor: {0}")]
    Descriptor(&'static str),
    /// An id that has been described, or is below 64 and not the sender's to give.
    #[error("gob: duplicate type received: id {id}")]
    DuplicateType {
        /// The sender's id.
        id: i64,
    },
    /// An id that nobody described.
    #[error("gob: type id {id} is used but not described")]
    UnknownType {
        /// The sender's id.
        id: i64,
    },
    /// The names of types and fields are UTF-8, those of registered types at most 1024 bytes long.
    #[error("gob: a name that is not UTF-8, or longer than 1024 bytes")]
    Name,
    /// A struct value has a field that its type has not.
    #[error("gob: field {number} of struct {of}, which has only {fields}")]
    FieldNumber {
        /// The struct.
        of: String,
        /// The field's number, from 0.
        number: u64,
        /// Number of fields.
        fields: usize,
    },
    /// An array with another number of elements than its type says.
    #[error("gob: {count} elements for array {of}")]
    ArrayLength {
        /// The array.
        of: String,
        /// The elements sent.
        count: u64,
    },
    /// Neither a struct nor the zero byte that stands before everything else.
    #[error("gob: corrupted data: non-zero delta for singleton")]
    Singleton,
    /// Bytes after a descriptor that is not inside an interface.
    #[error("gob: extra data in buffer after a type descriptor")]
    ExtraData,
    /// See [`Limits::value`].
    #[error("gob: a value of more than {limit} bytes")]
    ValueTooLong {
        /// The limit.
        limit: usize,
    },
    /// See [`Limits::memory`].
    #[error("gob: a value that takes more than {limit} bytes of memory")]
    ValueTooBig {
        /// The limit.
        limit: usize,
    },
    /// See [`Limits::types`].
    #[error("gob: type descriptors that take more than {limit} bytes of memory")]
    TooManyTypes {
        /// The limit.
        limit: usize,
    },
    /// See [`Limits::depth`].
    #[error("gob: a value of more than {limit} levels")]
    TooDeep {
        /// The limit.
        limit: usize,
    },
}
