/* A small ITT collector: writes down what instrumented code announces.
 *
 * Code instrumented with ITT carries a static part that stays inert until INTEL_LIBITTNOTIFY64 names a shared library.
 * At its first call it loads that library and, where the library exports __itt_api_init, hands over a table of entry
 * points: a name, the address of the pointer that calls go through, a do-nothing default. The collector stores its own
 * functions there. Each module with a static part of its own (ittapi, libtorch) calls __itt_api_init once.
 * The interface is public: github.com/intel/ittapi, ittnotify_config.h.
 *
 * ITT_LOG           file to append to; without it calls are only counted
 * ITT_START_PAUSED  collect nothing until the first resume, as `vtune -start-paused` does
 *
 * Line: monotonic ns, pid, tid, call, domain, name, id; tab-separated, "-" where there is none. Tasks that begin while
 * collection is paused are dropped, and so are their ends.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

struct api_entry { const char *name; void **slot; void *init, *null; int group; };
struct domain { volatile int flags; const char *name; void *wide; int e1; void *e2, *next; };
struct string_handle { const char *text; void *wide; int e1; void *e2, *next; };
struct id { unsigned long long d1, d2, d3; };
struct global {
    unsigned char magic[8];
    unsigned long major, minor, build;
    volatile long initialized, mutex_ready, counter;
    pthread_mutex_t mutex;
    void *library, *error_handler;
    const char **path;
    struct api_entry *entries;
    void *next, *threads;
    struct domain *domains;
    struct string_handle *strings;
};
typedef const struct domain *D;
typedef const struct string_handle *S;

enum { MAX_OPEN = 1024, MAX_EVENTS = 64 };
static int log_fd = -1, paused;
static unsigned long calls;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct id open_tasks[MAX_OPEN];
static int open_count;
static char event_names[MAX_EVENTS][64];
static int event_count;

static void emit(const char *call, const char *domain, const char *name, struct id id)
{
    char line[1024];
    struct timespec now;
    if (log_fd < 0) {
        __atomic_fetch_add(&calls, 1, __ATOMIC_RELAXED);
        return;
    }
    clock_gettime(CLOCK_MONOTONIC, &now);
    int n = snprintf(line, sizeof line, "%lld\t%d\t%ld\t%s\t%s\t%s\t%llx\n",
                     now.tv_sec * 1000000000LL + now.tv_nsec, (int)getpid(), (long)syscall(SYS_gettid), call,
                     domain ? domain : "-", name ? name : "-", id.d1);
    if (write(log_fd, line, (size_t)(n < (int)sizeof line ? n : (int)sizeof line - 1)) < 0)
        log_fd = -1;
}

static const struct id NONE;

static void task_begin_overlapped(D domain, struct id id, struct id parent, S name)
{
    (void)parent;
    pthread_mutex_lock(&lock);
    int taken = !paused && open_count < MAX_OPEN;
    if (taken)
        open_tasks[open_count++] = id;
    pthread_mutex_unlock(&lock);
    if (taken)
        emit("begin", domain->name, name->text, id);
}

static void task_end_overlapped(D domain, struct id id)
{
    int taken = 0;
    pthread_mutex_lock(&lock);
    for (int i = open_count - 1; i >= 0 && !taken; i--)
        if (open_tasks[i].d1 == id.d1) {
            open_tasks[i] = open_tasks[--open_count];
            taken = 1;
        }
    pthread_mutex_unlock(&lock);
    if (taken)
        emit("end", domain->name, NULL, id);
    else if (!paused)
        emit("unmatched_end", domain->name, NULL, id);
}

static int event_create(const char *name, int length)
{
    pthread_mutex_lock(&lock);
    int event = event_count < MAX_EVENTS ? event_count++ : MAX_EVENTS - 1;
    snprintf(event_names[event], sizeof event_names[event], "%.*s", length, name);
    pthread_mutex_unlock(&lock);
    return event;
}

static int event_start(int event)
{
    if (!paused)
        emit("event", NULL, event_names[event], NONE);
    return 0;
}

static int event_end(int event) { (void)event; return 0; }
static void pause_(void) { paused = 1; emit("pause", NULL, NULL, NONE); }
static void resume(void) { paused = 0; emit("resume", NULL, NULL, NONE); }

/* One object a name. Those made before the collector is loaded are in the static part's own lists, and adopted. */
struct node { struct node *next; void *object; };
static struct node *domains, *strings;

static void remember(struct node **list, void *object)
{
    struct node *node = malloc(sizeof *node);
    if (node)
        *node = (struct node){ *list, object }, *list = node;
}

static struct domain *domain_create(const char *name)
{
    struct domain *domain = NULL;
    pthread_mutex_lock(&lock);
    for (struct node *n = domains; n && !domain; n = n->next)
        if (!strcmp(((struct domain *)n->object)->name, name))
            domain = n->object;
    if (!domain && (domain = calloc(1, sizeof *domain))) {
        domain->flags = 1;
        domain->name = strdup(name);
        remember(&domains, domain);
    }
    pthread_mutex_unlock(&lock);
    return domain;
}

static struct string_handle *string_create(const char *name)
{
    struct string_handle *string = NULL;
    pthread_mutex_lock(&lock);
    for (struct node *n = strings; n && !string; n = n->next)
        if (!strcmp(((struct string_handle *)n->object)->text, name))
            string = n->object;
    if (!string && (string = calloc(1, sizeof *string))) {
        string->text = strdup(name);
        remember(&strings, string);
    }
    pthread_mutex_unlock(&lock);
    return string;
}

#define F(name, function) { "__itt_" name, (void *)(function) }
static const struct { const char *name; void *function; } functions[] = {
    F("domain_create", domain_create), F("string_handle_create", string_create),
    F("task_begin_overlapped", task_begin_overlapped), F("task_end_overlapped", task_end_overlapped),
    F("event_create", event_create), F("event_start", event_start), F("event_end", event_end),
    F("pause", pause_), F("resume", resume),
};

static void before_fork(void) { pthread_mutex_lock(&lock); }
static void after_fork(void) { pthread_mutex_unlock(&lock); }

__attribute__((constructor)) static void open_log(void)
{
    const char *path = getenv("ITT_LOG");
    if (path && *path)
        log_fd = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
    paused = getenv("ITT_START_PAUSED") != NULL;
    pthread_atfork(before_fork, after_fork, after_fork);
}

__attribute__((visibility("default"))) void __itt_api_init(struct global *global, int groups)
{
    (void)groups;
    for (struct api_entry *entry = global->entries; entry->name; entry++) {
        void *function = entry->null;
        for (size_t i = 0; i < sizeof functions / sizeof *functions; i++)
            if (!strcmp(entry->name, functions[i].name))
                function = functions[i].function;
        *entry->slot = function;
    }
    pthread_mutex_lock(&lock);
    for (struct domain *domain = global->domains; domain; domain = domain->next)
        remember(&domains, domain);
    for (struct string_handle *string = global->strings; string; string = string->next)
        remember(&strings, string);
    pthread_mutex_unlock(&lock);
    emit("attached", NULL, NULL, NONE);
}
