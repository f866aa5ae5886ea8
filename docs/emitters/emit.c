// Writes an assay dump (JSON lines). Call dump_open once, then dump_tensor wherever a value is known.
#include <math.h>
#include <stdio.h>

static FILE *dump;

void dump_open(const char *path, const char *engine, const int *tokens, int n) {
    dump = fopen(path, "w");
    fprintf(dump, "{\"assay_dump\": 1, \"engine\": \"%s\", \"tokens\": [", engine);
    for (int i = 0; i < n; i++) fprintf(dump, "%s%d", i ? ", " : "", tokens[i]);
    fprintf(dump, "]}\n");
}

// shape is row-major: slowest axis first, e.g. {tokens, heads, head_dim}
void dump_tensor(const char *name, const int *shape, int dims, const float *values) {
    size_t n = 1;
    fprintf(dump, "{\"name\": \"%s\", \"shape\": [", name);
    for (int i = 0; i < dims; n *= shape[i++]) fprintf(dump, "%s%d", i ? ", " : "", shape[i]);
    fprintf(dump, "], \"values\": [");
    for (size_t i = 0; i < n; i++)
        fprintf(dump, isfinite(values[i]) ? "%s%.9g" : "%snull", i ? ", " : "", values[i]);
    fprintf(dump, "]}\n");
}

#ifndef NO_MAIN
int main(int argc, char **argv) {
    const int tokens[] = {1, 450}, shape[] = {2, 3};
    const float values[] = {0.1f, -2.5f, 3e-7f, 4.0f, 5.25f, -6.0f};
    dump_open(argc > 1 ? argv[1] : "dump.jsonl", "example-c", tokens, 2);
    dump_tensor("embd", shape, 2, values);
    return fclose(dump);
}
#endif
