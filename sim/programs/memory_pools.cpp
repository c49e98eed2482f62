// Read by jemalloc, in every program that links accel::jemalloc. A training step asks for the same large tensors again and again: memory
// that is given back between steps costs a page fault for each 4 KiB of them (40 % of a small transformer's step). Small
// pieces are not kept by each of thousands of ranks' threads.
extern "C" {
[[gnu::visibility("default")]] const char* malloc_conf = "tcache_max:4096,dirty_decay_ms:10000,muzzy_decay_ms:0,oversize_threshold:0";
}
