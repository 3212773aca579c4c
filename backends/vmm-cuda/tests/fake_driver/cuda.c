/* A driver without a device: the functions of libcuda.so that vmm-cuda calls, over the host's memory.
 *
 * It is strict where a real driver is silent or undefined: a call in the wrong context, an unsafe call
 * during a capture, a part of a mapping, an event of another context, work on memory without access.
 * Frames are files in memory, so that one frame shows the same bytes at several addresses. Work runs on
 * one thread, which takes the streams in turn; the legacy stream orders the blocking streams.
 *
 * Beyond the driver's own functions there are fake_fail, fake_shutdown and fake_live for tests. */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#define API __attribute__((visibility("default")))
typedef int R;
typedef uint64_t P;
enum { OK = 0, INVALID = 1, OOM = 2, UNINIT = 3, GONE = 4, NODEV = 100, BADDEV = 101, BADCTX = 201,
       HANDLE = 400, NOTREADY = 600, ILLEGAL = 700, DESTROYED = 709, UNSUPPORTED = 801,
       CAPTURE_UNSUPPORTED = 900, CAPTURE_INVALID = 901, CAPTURE_IMPLICIT = 906, CAPTURED_EVENT = 907 };
static const size_t granule = 2ul << 20;
static uint64_t hurry = 1; /* naps are that many times shorter */
#define DEVICES 2
#define HOST_BIT 31

typedef struct Event { struct Ctx *ctx; uint64_t latest, done; int captured, destroyed; } Event;
typedef enum { FILL, COPY, RECORD, WAIT, KERNEL } Kind;
typedef struct Op {
	Kind kind; uint64_t seq, ticket, started, a[4]; float f; Event *event; const char *kernel; struct Op *next;
} Op;
typedef struct Stream {
	struct Ctx *ctx; int blocking, destroyed, capturing, invalid, mode; pthread_t by;
	Op *head, *tail; struct Stream *next;
} Stream;
typedef struct Ctx { int dev, refs, active; uint64_t id; R sticky; Stream legacy; } Ctx;
typedef struct Frame { P handle; size_t len; int fd, host, dev, exportable, released, maps; struct Frame *next; } Frame;
typedef struct Map { P at; size_t len; Frame *frame; uint32_t access; struct Map *next; } Map;
typedef struct Span { P at; size_t len; int dev; struct Span *next; } Span;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t work = PTHREAD_COND_INITIALIZER;
static int initialised, down, devices = 1;
static pid_t pid;
static size_t total = 4ul << 30, used[DEVICES];
static Ctx ctxs[DEVICES];
static Stream *streams;
static Frame *frames;
static Map *maps;
static Span *reserved, *plain;
static uint64_t seq, next_id = 1, next_handle = 0x1000;
static int live_events, live_streams;
static __thread Ctx *stack[16];
static __thread int depth, mode;
static __thread Stream *own[DEVICES];
static char fail_name[64]; static int fail_after, fail_code;

static uint64_t now(void) { struct timespec t; clock_gettime(CLOCK_MONOTONIC, &t); return t.tv_sec * 1000000000ull + t.tv_nsec; }
static Ctx *current(void) { return depth ? stack[depth - 1] : NULL; }

static R enter(const char *name) {
	pthread_mutex_lock(&lock);
	if (down) return GONE;
	if (!initialised || pid != getpid()) return UNINIT;
	if (fail_after && !strcmp(name, fail_name) && --fail_after == 0) return fail_code;
	return OK;
}
static int pump(void);
/* Work that nothing holds up is done when the call returns, as on a device that is much quicker. */
static R leave(R r) { while (pump()) { } pthread_cond_broadcast(&work); pthread_mutex_unlock(&lock); return r; }
#define ENTER do { R r_ = enter(__func__); if (r_) return leave(r_); } while (0)
#define CTX Ctx *ctx = current(); if (!ctx) return leave(BADCTX); if (!ctx->active) return leave(DESTROYED); \
	if (ctx->sticky) return leave(ctx->sticky)
/* Calls that a capture forbids to threads that have not relaxed their mode. */
#define UNSAFE do { if (forbidden()) return leave(CAPTURE_UNSUPPORTED); } while (0)
static int forbidden(void) {
	int found = 0;
	if (mode == 2) return 0;
	for (Stream *s = streams; s; s = s->next) {
		if (!s->capturing || s->mode == 2) continue;
		int mine = pthread_equal(s->by, pthread_self());
		if (mine || (s->mode == 0 && mode == 0)) { s->invalid = 1; found = 1; }
	}
	return found;
}

/* Memory. */
static Map *map_at(P at) { for (Map *m = maps; m; m = m->next) if (at >= m->at && at < m->at + m->len) return m; return NULL; }
/* Whether whole mappings cover the range, and nothing else. */
static int whole(P at, size_t len) {
	P end = at + len;
	while (at < end) { Map *m = map_at(at); if (!m || m->at != at || at + m->len > end) return 0; at += m->len; }
	return 1;
}
static int usable(int dev, P at, size_t len) {
	P end = at + len;
	while (at < end) {
		Map *m = map_at(at);
		if (!m) break;
		if (!(m->access >> dev & 1)) return 0;
		at = m->at + m->len;
	}
	if (at >= end) return 1;
	for (Span *s = plain; s; s = s->next) if (at >= s->at && end <= s->at + s->len) return s->dev < 0 || s->dev == dev;
	return 0;
}
static int in(Span *list, P at, size_t len) { for (; list; list = list->next) if (at >= list->at && at + len <= list->at + list->len) return 1; return 0; }
static void push(Span **list, P at, size_t len, int dev) { Span *s = malloc(sizeof *s); *s = (Span){ at, len, dev, *list }; *list = s; }
static Span take(Span **list, P at) {
	for (Span **s = list; *s; s = &(*s)->next) if ((*s)->at == at) { Span got = **s, *old = *s; *s = old->next; free(old); return got; }
	return (Span){ 0, 0, 0, 0 };
}

/* Work. */
static uint64_t word(uint64_t seed, uint64_t i) {
	uint64_t z = (i + 1) * 0x9E3779B97F4A7C15ull + seed;
	z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9ull; z = (z ^ z >> 27) * 0x94D049BB133111EBull; return z ^ z >> 31;
}
static int run(Stream *s, Op *o) { /* 0: not yet */
	int dev = s->ctx->dev; uint8_t *p = (uint8_t *)o->a[0];
	switch (o->kind) {
	case FILL:
		if (!usable(dev, o->a[0], o->a[1])) { s->ctx->sticky = ILLEGAL; return 1; }
		memset(p, (int)o->a[2], o->a[1]); return 1;
	case COPY:
		memmove(p, (void *)o->a[1], o->a[2]); return 1;
	case RECORD: if (o->event->done < o->ticket) o->event->done = o->ticket; return 1;
	case WAIT: return o->event->done >= o->ticket;
	case KERNEL: break;
	}
	if (!o->started) o->started = now();
	if (!strcmp(o->kernel, "vmm_nap")) return (now() - o->started) * hurry >= o->a[0];
	if (!strcmp(o->kernel, "vmm_hold")) return (int32_t)(*(volatile uint32_t *)p - (uint32_t)o->a[1]) >= 0 || now() - o->started >= o->a[2];
	if (!strcmp(o->kernel, "vmm_axpy")) {
		float *y = (float *)p, *x = (float *)o->a[1];
		if (!usable(dev, o->a[0], o->a[3] * 4) || !usable(dev, o->a[1], o->a[3] * 4)) { s->ctx->sticky = ILLEGAL; return 1; }
		for (uint64_t i = 0; i < o->a[3]; i++) y[i] += o->f * x[i];
		return 1;
	}
	uint64_t len = o->a[1], seed = o->a[2];
	if (!usable(dev, o->a[0], len)) { s->ctx->sticky = ILLEGAL; return 1; }
	int fills = !strcmp(o->kernel, "vmm_contents_fill"), same = !fills && (uint64_t)o->ticket;
	uint64_t *found = (uint64_t *)o->a[3];
	for (uint64_t i = 0; i < len; i += 8) {
		uint64_t want = same ? seed : word(seed, i / 8), got = 0, n = len - i < 8 ? len - i : 8;
		if (fills) { memcpy(p + i, &want, n); continue; }
		memcpy(&got, p + i, n);
		for (uint64_t b = 0; got != want && b < n; b++) {
			if ((uint8_t)(got >> b * 8) == (uint8_t)(want >> b * 8)) continue;
			found[0]++;
			if (o->a[0] + i + b < found[1]) found[1] = o->a[0] + i + b;
		}
	}
	return 1;
}
/* The legacy stream comes behind all earlier work of blocking streams, and they behind its. */
static int ordered(Stream *s) {
	for (Stream *o = streams; o; o = o->next) {
		if (o == s || o->ctx != s->ctx || !o->head || o->head->seq > s->head->seq) continue;
		if (s == &s->ctx->legacy && o->blocking) return 0;
		if (s->blocking && o == &s->ctx->legacy) return 0;
	}
	return 1;
}
static int waiting;
static int pump(void) { /* Whether anything ran. */
	int ran = 0;
	waiting = 0;
	for (Stream *s = streams; s; s = s->next) {
		if (!s->head) continue;
		if (!ordered(s) || !run(s, s->head)) { waiting = 1; continue; }
		Op *o = s->head; s->head = o->next; if (!s->head) s->tail = NULL; free(o); ran = 1;
	}
	return ran;
}
static void *engine(void *unused) {
	(void)unused;
	pthread_mutex_lock(&lock);
	for (;;) {
		if (pump()) { pthread_cond_broadcast(&work); continue; }
		struct timespec t; clock_gettime(CLOCK_REALTIME, &t);
		t.tv_nsec += waiting ? 50000 : 50000000; if (t.tv_nsec >= 1000000000) { t.tv_sec++; t.tv_nsec -= 1000000000; }
		pthread_cond_timedwait(&work, &lock, &t);
	}
	return NULL;
}
static void list(Stream *s) { s->next = streams; streams = s; }
static Stream *find(Ctx *ctx, void *raw) {
	switch ((uintptr_t)raw) {
	case 0: case 1: return &ctx->legacy;
	case 2:
		if (!own[ctx->dev]) { own[ctx->dev] = calloc(1, sizeof(Stream)); own[ctx->dev]->ctx = ctx; own[ctx->dev]->blocking = 1; list(own[ctx->dev]); }
		return own[ctx->dev];
	}
	for (Stream *s = streams; s; s = s->next) if (s == raw) return s->destroyed ? NULL : s;
	return NULL;
}
static int blocking_captures(Ctx *ctx) { for (Stream *s = streams; s; s = s->next) if (s->capturing && s->blocking && s->ctx == ctx) return 1; return 0; }
static R queue(Ctx *ctx, Stream *s, Op o) {
	if (!s) return HANDLE;
	if (s == &ctx->legacy && blocking_captures(ctx)) {
		for (Stream *c = streams; c; c = c->next) if (c->capturing && c->blocking) c->invalid = 1;
		return CAPTURE_IMPLICIT;
	}
	if (s->capturing) { if (o.event && o.kind == RECORD) o.event->captured = 1; return OK; }
	Op *n = malloc(sizeof *n); *n = o; n->seq = ++seq; n->next = NULL;
	if (s->tail) s->tail->next = n; else s->head = n;
	s->tail = n; return OK;
}

/* The driver. */
API R cuDriverGetVersion(int *v) { const char *e = getenv("FAKE_CUDA_VERSION"); *v = e ? atoi(e) : 13000; return OK; }
API R cuInit(unsigned flags) {
	if (flags) return INVALID;
	pthread_mutex_lock(&lock);
	const char *n = getenv("FAKE_CUDA_DEVICES");
	devices = n ? atoi(n) : 1;
	if (!devices) { pthread_mutex_unlock(&lock); return NODEV; }
	if (getenv("FAKE_CUDA_HURRY")) hurry = strtoul(getenv("FAKE_CUDA_HURRY"), NULL, 10);
	if (!initialised) {
		initialised = 1; pid = getpid();
		for (int d = 0; d < DEVICES; d++) { ctxs[d].dev = d; ctxs[d].legacy.ctx = &ctxs[d]; list(&ctxs[d].legacy); }
		pthread_t t; pthread_create(&t, NULL, engine, NULL); pthread_detach(t);
	}
	pthread_mutex_unlock(&lock);
	return pid == getpid() ? OK : UNINIT;
}
API R cuGetErrorName(R r, const char **s) {
	switch (r) {
	case OOM: *s = "CUDA_ERROR_OUT_OF_MEMORY"; return OK;
	case INVALID: *s = "CUDA_ERROR_INVALID_VALUE"; return OK;
	case CAPTURE_UNSUPPORTED: *s = "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED"; return OK;
	case ILLEGAL: *s = "CUDA_ERROR_ILLEGAL_ADDRESS"; return OK;
	case GONE: *s = "CUDA_ERROR_DEINITIALIZED"; return OK;
	case DESTROYED: *s = "CUDA_ERROR_CONTEXT_IS_DESTROYED"; return OK;
	}
	*s = NULL; return INVALID;
}
API R cuGetErrorString(R r, const char **s) { return cuGetErrorName(r, s); }
API R cuDeviceGetCount(int *n) { ENTER; *n = devices; return leave(OK); }
API R cuDeviceGet(int *d, int n) { ENTER; if (n < 0 || n >= devices) return leave(BADDEV); *d = n; return leave(OK); }
API R cuDeviceGetName(char *s, int n, int d) { ENTER; snprintf(s, n, "fake device %d", d); return leave(OK); }
API R cuDeviceGetUuid_v2(char *uuid, int d) { ENTER; for (int i = 0; i < 16; i++) uuid[i] = (char)(16 * i + d); return leave(OK); }
API R cuDeviceGetAttribute(int *v, int a, int d) {
	ENTER; (void)d;
	const char *off = getenv("FAKE_CUDA_NO_VMM");
	switch (a) { case 102: *v = !off; break; case 103: case 110: case 115: *v = 1; break; case 134: *v = 0; break; case 16: *v = 2; break; default: return leave(INVALID); }
	return leave(OK);
}
API R cuDeviceCanAccessPeer(int *v, int d, int p) { ENTER; *v = d != p; return leave(OK); }
API R cuDevicePrimaryCtxRetain(Ctx **c, int d) {
	ENTER; UNSAFE; *c = &ctxs[d];
	if (!ctxs[d].active) { ctxs[d].active = 1; ctxs[d].id = next_id++; ctxs[d].sticky = OK; }
	ctxs[d].refs++; return leave(OK);
}
static void destroy(Ctx *c) { c->active = 0; c->refs = 0; for (Stream *s = streams; s; s = s->next) if (s->ctx == c) { s->head = s->tail = NULL; if (s != &c->legacy) s->destroyed = 1; } }
API R cuDevicePrimaryCtxRelease_v2(int d) { ENTER; if (!ctxs[d].refs) return leave(BADCTX); if (!--ctxs[d].refs) destroy(&ctxs[d]); return leave(OK); }
API R cuDevicePrimaryCtxReset_v2(int d) { ENTER; destroy(&ctxs[d]); return leave(OK); }
API R cuCtxGetId(Ctx *c, unsigned long long *id) { ENTER; if (!c->active) return leave(DESTROYED); *id = c->id; return leave(OK); }
API R cuCtxGetCurrent(Ctx **c) { ENTER; *c = current(); return leave(OK); }
API R cuCtxSetCurrent(Ctx *c) { ENTER; if (depth) depth--; if (c) stack[depth++] = c; return leave(OK); }
API R cuCtxPushCurrent_v2(Ctx *c) { ENTER; if (!c->active) return leave(DESTROYED); stack[depth++] = c; return leave(OK); }
API R cuCtxPopCurrent_v2(Ctx **c) { ENTER; if (!depth) return leave(BADCTX); *c = stack[--depth]; return leave(OK); }
API R cuThreadExchangeStreamCaptureMode(int *m) { ENTER; int old = mode; mode = *m; *m = old; return leave(OK); }
API R cuMemGetInfo_v2(size_t *f, size_t *t) { ENTER; CTX; UNSAFE; *f = total - used[ctx->dev]; *t = total; return leave(OK); }
API R cuMemAlloc_v2(P *p, size_t n) {
	ENTER; CTX; UNSAFE;
	if (!n) return leave(INVALID);
	size_t take_ = (n + granule - 1) & ~(granule - 1);
	if (used[ctx->dev] + take_ > total) return leave(OOM);
	void *m = mmap(NULL, take_ + granule, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (m == MAP_FAILED) return leave(OOM);
	P at = ((P)m + granule - 1) & ~(granule - 1);
	/* Where asked, an address that is not a multiple of the granule. */
	if (getenv("FAKE_CUDA_UNALIGNED")) at = at + 512 <= (P)m + granule ? at + 512 : at;
	used[ctx->dev] += take_; push(&plain, at, n, ctx->dev); *p = at; return leave(OK);
}
API R cuMemFree_v2(P p) {
	ENTER; CTX; UNSAFE;
	Span s = take(&plain, p);
	if (!s.at) return leave(INVALID);
	madvise((void *)(s.at & ~4095ul), s.len & ~4095ul, MADV_DONTNEED);
	used[s.dev] -= (s.len + granule - 1) & ~(granule - 1); return leave(OK);
}
API R cuMemHostAlloc(void **p, size_t n, unsigned f) { ENTER; CTX; UNSAFE; (void)f; *p = calloc(1, n + 64); push(&plain, (P)*p, n, -1); return leave(OK); }
API R cuMemFreeHost(void *p) { ENTER; UNSAFE; Span s = take(&plain, (P)p); if (!s.at) return leave(INVALID); free(p); return leave(OK); }
API R cuMemHostGetDevicePointer_v2(P *d, void *p, unsigned f) { ENTER; if (f) return leave(INVALID); *d = (P)p; return leave(OK); }

/* Virtual memory. */
typedef struct { int type, id; } Loc;
typedef struct { int type, handles; Loc loc; void *w; unsigned char compression, rdma, rest[6]; } Prop;
typedef struct { Loc loc; int flags; } Access;
API R cuMemGetAllocationGranularity(size_t *g, const Prop *p, int o) { ENTER; if (o || p->type != 1 || (p->loc.type == 3 && p->loc.id)) return leave(INVALID); *g = granule; return leave(OK); }
API R cuMemAddressReserve(P *p, size_t n, size_t align, P hint, unsigned long long f) {
	ENTER; UNSAFE; (void)hint;
	if (f || !n || n % granule || align & (align - 1)) return leave(INVALID);
	if (align < granule) align = granule;
	if (n > 1ul << 46) return leave(OOM);
	char *m = mmap(NULL, n + align, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (m == MAP_FAILED) return leave(OOM);
	char *at = (char *)(((P)m + align - 1) & ~(align - 1));
	if (at > m) munmap(m, at - m);
	if (m + align > at) munmap(at + n, m + align - at);
	push(&reserved, (P)at, n, 0); *p = (P)at; return leave(OK);
}
API R cuMemAddressFree(P p, size_t n) {
	ENTER; UNSAFE;
	for (Map *m = maps; m; m = m->next) if (m->at >= p && m->at < p + n) return leave(INVALID);
	Span s = take(&reserved, p);
	if (!s.at || s.len != n) { if (s.at) push(&reserved, s.at, s.len, 0); return leave(INVALID); }
	munmap((void *)p, n); return leave(OK);
}
API R cuMemCreate(P *h, size_t n, const Prop *p, unsigned long long f) {
	ENTER; UNSAFE;
	if (f || !n || n % granule || p->type != 1) return leave(INVALID);
	int host = p->loc.type == 3, dev = p->loc.id;
	if (host ? dev != 0 : p->loc.type != 1 || dev < 0 || dev >= devices) return leave(INVALID);
	if (!host && used[dev] + n > total) return leave(OOM);
	int fd = memfd_create("frame", MFD_CLOEXEC);
	if (fd < 0 || ftruncate(fd, n)) return leave(OOM);
	Frame *fr = malloc(sizeof *fr);
	*fr = (Frame){ next_handle++, n, fd, host, dev, p->handles == 1, 0, 0, frames }; frames = fr;
	if (!host) used[dev] += n;
	*h = fr->handle; return leave(OK);
}
static void drop_frame(Frame *f) {
	if (!f->released || f->maps) return;
	if (!f->host) used[f->dev] -= f->len;
	close(f->fd);
	for (Frame **p = &frames; *p; p = &(*p)->next) if (*p == f) { *p = f->next; break; }
	free(f);
}
static Frame *frame(P h) { for (Frame *f = frames; f; f = f->next) if (f->handle == h && !f->released) return f; return NULL; }
API R cuMemRelease(P h) { ENTER; UNSAFE; Frame *f = frame(h); if (!f) return leave(INVALID); f->released = 1; drop_frame(f); return leave(OK); }
API R cuMemMap(P at, size_t n, size_t off, P h, unsigned long long fl) {
	ENTER; UNSAFE;
	Frame *f = frame(h);
	if (!f || fl || at % granule || !in(reserved, at, n)) return leave(INVALID);
	if (off || n != f->len) return leave(UNSUPPORTED);
	for (Map *m = maps; m; m = m->next) if (m->at < at + n && at < m->at + m->len) return leave(INVALID);
	if (mmap((void *)at, n, PROT_NONE, MAP_SHARED | MAP_FIXED, f->fd, 0) == MAP_FAILED) return leave(OOM);
	Map *m = malloc(sizeof *m); *m = (Map){ at, n, f, 0, maps }; maps = m; f->maps++; return leave(OK);
}
API R cuMemUnmap(P at, size_t n) {
	ENTER; UNSAFE;
	if (!n || !whole(at, n)) return leave(INVALID);
	for (Map **p = &maps; *p;) {
		Map *m = *p;
		if (m->at < at || m->at >= at + n) { p = &m->next; continue; }
		*p = m->next; m->frame->maps--; drop_frame(m->frame); free(m);
	}
	mmap((void *)at, n, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
	return leave(OK);
}
API R cuMemSetAccess(P at, size_t n, const Access *d, size_t count) {
	ENTER; UNSAFE;
	if (!n || !whole(at, n) || !count) return leave(INVALID);
	uint32_t bits = 0;
	for (size_t i = 0; i < count; i++) {
		if (d[i].flags != 3) return leave(INVALID);
		if (d[i].loc.type == 1 && d[i].loc.id >= 0 && d[i].loc.id < devices) bits |= 1u << d[i].loc.id;
		else if (d[i].loc.type == 3) bits |= 1u << HOST_BIT;
		else return leave(BADDEV);
	}
	for (Map *m = maps; m; m = m->next) if (m->at >= at && m->at < at + n && bits >> HOST_BIT && !m->frame->host) return leave(INVALID);
	for (Map *m = maps; m; m = m->next) if (m->at >= at && m->at < at + n) { m->access |= bits; mprotect((void *)m->at, m->len, PROT_READ | PROT_WRITE); }
	return leave(OK);
}
API R cuMemGetAccess(unsigned long long *flags, const Loc *loc, P at) {
	ENTER;
	Map *m = map_at(at);
	if (!m) return leave(INVALID);
	*flags = m->access >> (loc->type == 3 ? HOST_BIT : loc->id) & 1 ? 3 : 0; return leave(OK);
}
API R cuMemExportToShareableHandle(void *out, P h, int type, unsigned long long f) {
	ENTER; UNSAFE;
	Frame *fr = frame(h);
	if (!fr || f || type != 1 || !fr->exportable) return leave(INVALID);
	*(int *)out = dup(fr->fd); return leave(OK);
}

/* Streams, events, work. */
API R cuMemcpyDtoDAsync_v2(P to, P from, size_t n, void *s) { ENTER; CTX; if (!usable(ctx->dev, to, n) || !usable(ctx->dev, from, n)) return leave(INVALID); return leave(queue(ctx, find(ctx, s), (Op){ .kind = COPY, .a = { to, from, n } })); }
API R cuMemsetD8Async(P to, unsigned char b, size_t n, void *s) { ENTER; CTX; return leave(queue(ctx, find(ctx, s), (Op){ .kind = FILL, .a = { to, n, b } })); }
static R drain(Stream *s) {
	if (!s) return HANDLE;
	if (s->capturing) { s->invalid = 1; return CAPTURE_UNSUPPORTED; }
	if (s == &s->ctx->legacy && blocking_captures(s->ctx)) return CAPTURE_IMPLICIT;
	while (s->head) { pthread_cond_broadcast(&work); pthread_cond_wait(&work, &lock); }
	return s->ctx->sticky;
}
/* Pageable memory of the host: the source is copied before the call returns, a target after the work. */
API R cuMemcpyHtoDAsync_v2(P to, const void *from, size_t n, void *raw) {
	ENTER; CTX;
	Stream *s = find(ctx, raw);
	R r = drain(s); if (r) return leave(r);
	if (!usable(ctx->dev, to, n)) return leave(INVALID);
	memcpy((void *)to, from, n); return leave(OK);
}
API R cuMemcpyDtoHAsync_v2(void *to, P from, size_t n, void *raw) {
	ENTER; CTX;
	Stream *s = find(ctx, raw);
	R r = drain(s); if (r) return leave(r);
	if (!usable(ctx->dev, from, n)) return leave(INVALID);
	memcpy(to, (void *)from, n); return leave(OK);
}
API R cuStreamCreate(Stream **out, unsigned f) { ENTER; CTX; UNSAFE; Stream *s = calloc(1, sizeof *s); s->ctx = ctx; s->blocking = !(f & 1); list(s); live_streams++; *out = s; return leave(OK); }
API R cuStreamDestroy_v2(Stream *s) { ENTER; if (s->destroyed) return leave(HANDLE); s->destroyed = 1; live_streams--; return leave(OK); }
API R cuStreamSynchronize(void *raw) { ENTER; CTX; UNSAFE; return leave(drain(find(ctx, raw))); }
API R cuCtxSynchronize(void) {
	ENTER; CTX;
	for (Stream *s = streams; s; s = s->next) if (s->ctx == ctx && s->capturing) { s->invalid = 1; return leave(CAPTURE_UNSUPPORTED); }
	for (Stream *s = streams; s; s = s->next) while (s->ctx == ctx && s->head) pthread_cond_wait(&work, &lock);
	return leave(ctx->sticky);
}
API R cuStreamIsCapturing(void *raw, int *status) {
	ENTER; CTX;
	Stream *s = find(ctx, raw); if (!s) return leave(HANDLE);
	if (s == &ctx->legacy && blocking_captures(ctx)) return leave(CAPTURE_IMPLICIT);
	*status = !s->capturing ? 0 : s->invalid ? 2 : 1; return leave(OK);
}
API R cuStreamBeginCapture_v2(void *raw, int m) {
	ENTER; CTX;
	Stream *s = find(ctx, raw);
	if (!s || s == &ctx->legacy || s->capturing) return leave(INVALID);
	s->capturing = 1; s->invalid = 0; s->mode = m; s->by = pthread_self(); return leave(OK);
}
API R cuStreamEndCapture(void *raw, void **graph) {
	ENTER; CTX;
	Stream *s = find(ctx, raw); if (!s || !s->capturing) return leave(INVALID);
	s->capturing = 0; *graph = s->invalid ? NULL : (void *)0x10;
	return leave(s->invalid ? CAPTURE_INVALID : OK);
}
API R cuGraphDestroy(void *g) { ENTER; return leave(g ? OK : INVALID); }
API R cuStreamWaitEvent(void *raw, Event *e, unsigned f) {
	ENTER; CTX; (void)f;
	if (e->destroyed) return leave(HANDLE);
	return leave(queue(ctx, find(ctx, raw), (Op){ .kind = WAIT, .event = e, .ticket = e->latest }));
}
API R cuEventCreate(Event **e, unsigned f) { ENTER; CTX; UNSAFE; (void)f; *e = calloc(1, sizeof **e); (*e)->ctx = ctx; live_events++; return leave(OK); }
API R cuEventDestroy_v2(Event *e) { ENTER; if (e->destroyed) return leave(HANDLE); e->destroyed = 1; live_events--; return leave(OK); }
API R cuEventRecord(Event *e, void *raw) {
	ENTER; CTX;
	Stream *s = find(ctx, raw);
	if (!s || e->destroyed || e->ctx != s->ctx) return leave(HANDLE);
	R r = queue(ctx, s, (Op){ .kind = RECORD, .event = e, .ticket = e->latest + 1 });
	if (!r) { e->latest++; e->captured = s->capturing; }
	return leave(r);
}
API R cuEventQuery(Event *e) {
	ENTER; UNSAFE;
	if (e->destroyed) return leave(HANDLE);
	if (e->captured) return leave(CAPTURED_EVENT);
	if (e->ctx->sticky) return leave(e->ctx->sticky);
	return leave(e->done >= e->latest ? OK : NOTREADY);
}
API R cuModuleLoadData(void **m, const void *text) { ENTER; CTX; UNSAFE; if (!strstr(text, ".version")) return leave(218); *m = (void *)0x20; return leave(OK); }
API R cuModuleUnload(void *m) { ENTER; return leave(m ? OK : INVALID); }
static const char *kernels[] = { "vmm_contents_fill", "vmm_contents_check", "vmm_nap", "vmm_hold", "vmm_axpy" };
API R cuModuleGetFunction(void **f, void *m, const char *name) { ENTER; (void)m; for (int i = 0; i < 5; i++) if (!strcmp(name, kernels[i])) { *f = (void *)kernels[i]; return leave(OK); } return leave(500); }
API R cuLaunchKernel(void *f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, unsigned sh, void *raw, void **a, void **extra) {
	ENTER; CTX; (void)extra; (void)sh;
	if (!gx || !gy || !gz || !bx || !by || !bz || bx > 1024) return leave(INVALID);
	Op o = { .kind = KERNEL, .kernel = f };
	if (!strcmp(f, "vmm_nap")) o.a[0] = *(uint64_t *)a[0];
	else if (!strcmp(f, "vmm_hold")) { o.a[0] = *(uint64_t *)a[0]; o.a[1] = *(uint32_t *)a[1]; o.a[2] = *(uint64_t *)a[2]; }
	else if (!strcmp(f, "vmm_axpy")) { o.a[0] = *(uint64_t *)a[0]; o.a[1] = *(uint64_t *)a[1]; o.f = *(float *)a[2]; o.a[3] = *(uint64_t *)a[3]; }
	else {
		int check = !strcmp(f, "vmm_contents_check");
		for (int i = 0; i < 3 + check; i++) o.a[i] = *(uint64_t *)a[i];
		if (check) o.ticket = *(uint32_t *)a[4];
	}
	return leave(queue(ctx, find(ctx, raw), o));
}

/* For tests. */
API void fake_fail(const char *name, int nth, int code) { pthread_mutex_lock(&lock); snprintf(fail_name, sizeof fail_name, "%s", name); fail_after = nth; fail_code = code; pthread_mutex_unlock(&lock); }
API void fake_shutdown(void) { pthread_mutex_lock(&lock); down = 1; pthread_mutex_unlock(&lock); }
/* Events, streams, frames, mappings, reservations, plain allocations, shares in contexts. */
API void fake_live(int *out) {
	pthread_mutex_lock(&lock);
	memset(out, 0, 7 * sizeof *out); out[0] = live_events; out[1] = live_streams;
	for (Frame *f = frames; f; f = f->next) out[2]++;
	for (Map *m = maps; m; m = m->next) out[3]++;
	for (Span *s = reserved; s; s = s->next) out[4]++;
	for (Span *s = plain; s; s = s->next) out[5]++;
	for (int d = 0; d < DEVICES; d++) out[6] += ctxs[d].refs;
	pthread_mutex_unlock(&lock);
}
