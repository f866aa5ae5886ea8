// Writes an assay dump (JSON lines); build with -lc. Open once, then call `tensor` wherever a value is known.
// It uses C's stdio because that is the same in every release of Zig.
const FILE = opaque {};
extern "c" fn fopen(path: [*:0]const u8, mode: [*:0]const u8) ?*FILE;
extern "c" fn fprintf(file: *FILE, format: [*:0]const u8, ...) c_int;
extern "c" fn fclose(file: *FILE) c_int;

pub const Dump = struct {
    file: *FILE,

    pub fn open(path: [*:0]const u8, engine: [*:0]const u8, tokens: []const c_int) !Dump {
        const file = fopen(path, "w") orelse return error.CannotOpen;
        _ = fprintf(file, "{\"assay_dump\": 1, \"engine\": \"%s\", \"tokens\": [", engine);
        for (tokens, 0..) |id, i| _ = fprintf(file, if (i > 0) ", %d" else "%d", id);
        _ = fprintf(file, "]}\n");
        return .{ .file = file };
    }

    /// `shape` is row-major: slowest axis first, e.g. tokens, heads, head_dim. NaN and infinity become null.
    pub fn tensor(self: Dump, name: [*:0]const u8, shape: []const c_int, values: []const f32) void {
        _ = fprintf(self.file, "{\"name\": \"%s\", \"shape\": [", name);
        for (shape, 0..) |n, i| _ = fprintf(self.file, if (i > 0) ", %d" else "%d", n);
        _ = fprintf(self.file, "], \"values\": [");
        for (values, 0..) |v, i| {
            if (i > 0) _ = fprintf(self.file, ", ");
            if (v - v == 0) _ = fprintf(self.file, "%.9g", @as(f64, v)) else _ = fprintf(self.file, "null");
        }
        _ = fprintf(self.file, "]}\n");
    }
};

pub fn main() !void {
    const dump = try Dump.open("dump.jsonl", "example-zig", &.{ 1, 450 });
    dump.tensor("embd", &.{ 2, 3 }, &.{ 0.1, -2.5, 3e-7, 4.0, 5.25, -6.0 });
    _ = fclose(dump.file);
}
