/* Stub Level Zero driver for tests: describes Intel GPUs that do not exist.
 *
 * Built two ways (stub.py): as a driver, which a real loader dlopen()s (ZE_ENABLE_ALT_DRIVERS) and
 * asks for its tables of function pointers; and with -DDIRECT as a stand-in for the loader itself.
 * Only what a device inventory reads is answered; every other entry stays null, which the loader
 * reports as ZE_RESULT_ERROR_UNSUPPORTED_FEATURE. No Level Zero header is needed: the tables are
 * written by index, so one build serves old and new loaders.
 *
 * STUB_ZE_DEVICES  devices, ',' between the devices of a driver, ';' between drivers:
 *                  ADDRESS[/name=TEXT][/uuid=32 HEX][/tiles=N][/igpu][/noext]
 * STUB_ZE_INIT     hex ze_result_t that zeInit/zesInit return instead of 0
 *
 * As with Intel's driver, Sysman calls need either zesInit, or ZES_ENABLE_SYSMAN=1 at zeInit; after
 * the latter zesInit fails; zesInit also fails where there is no device.
 * STUB_ZE_LOG      file to append one line per call to
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { OK = 0, UNINITIALIZED = 0x78000001, NULL_POINTER = 0x78000007, NULL_HANDLE = 0x78000005 };
enum { MAX = 64, TYPE_GPU = 1, INTEGRATED = 1, VENDOR = 0x8086 };
enum { ZES_DEVICE_EXT_PROPERTIES = 0x2d };

struct address { uint32_t domain, bus, device, function; };
struct head { uint32_t stype; void *next; };

struct core_properties {                       /* ze_device_properties_t */
    struct head head;
    uint32_t type, vendor, device, flags, subdevice, clock;
    uint64_t max_alloc;
    uint32_t contexts, priority, threads, simd, eus, subslices, slices;
    uint64_t timer;
    uint32_t bits, kernel_bits;
    uint8_t uuid[16];
    char name[256];
};
struct sysman_properties {                     /* zes_device_properties_t */
    struct head head;
    struct core_properties core;
    uint32_t subdevices;
    char serial[64], board[64], brand[64], model[64], vendor[64], version[64];
};
struct ext_properties { struct head head; uint8_t uuid[16]; uint32_t type, flags; };
struct pci_properties {                        /* zes_pci_properties_t */
    struct head head;
    struct address address;
    int32_t gen, width;
    int64_t bandwidth;
    uint8_t counters[3];
};
struct pci_ext_properties {                    /* ze_pci_ext_properties_t */
    struct head head;
    struct address address;
    int32_t gen, width;
    int64_t bandwidth;
};
struct subdevice_properties { struct head head; uint32_t id; uint8_t uuid[16]; };
struct driver_properties { struct head head; uint8_t uuid[16]; uint32_t version; };

static struct driver { int first, count; } drivers[MAX];
static struct device {
    struct address address;
    uint8_t uuid[16];
    char name[256];
    uint32_t tiles, flags;
    int no_ext;
} devices[MAX];
static int driver_count, device_count;
static enum { NONE, FROM_CORE, ONLY } sysman;

static void note(const char *call)
{
    const char *path = getenv("STUB_ZE_LOG");
    FILE *log = path && *path ? fopen(path, "a") : NULL;
    if (!log)
        return;
    fprintf(log, "%ld %s\n", (long)getpid(), call);
    fclose(log);
}

static void parse_device(struct device *d, char *text, int index)
{
    char *save = NULL, *field = strtok_r(text, "/", &save);
    if (!field || sscanf(field, "%x:%x:%x.%x", &d->address.domain, &d->address.bus,
                         &d->address.device, &d->address.function) != 4)
        fprintf(stderr, "stub_driver: bad PCI address in STUB_ZE_DEVICES: %s\n", text);
    snprintf(d->name, sizeof d->name, "Stub GPU %d", index);
    memcpy(d->uuid, "STUB", 4);
    d->uuid[15] = (uint8_t)index;
    while ((field = strtok_r(NULL, "/", &save))) {
        if (!strncmp(field, "name=", 5))
            snprintf(d->name, sizeof d->name, "%s", field + 5);
        else if (!strncmp(field, "tiles=", 6))
            d->tiles = (uint32_t)atoi(field + 6);
        else if (!strncmp(field, "uuid=", 5))
            for (int i = 0; i < 16; i++)
                sscanf(field + 5 + 2 * i, "%2hhx", &d->uuid[i]);
        else if (!strcmp(field, "igpu"))
            d->flags |= INTEGRATED;
        else if (!strcmp(field, "noext"))
            d->no_ext = 1;
    }
}

__attribute__((constructor)) static void parse(void)
{
    const char *spec = getenv("STUB_ZE_DEVICES");
    char *copy = strdup(spec ? spec : ""), *rest = copy, *group;
    int n = 0;
    while ((group = strsep(&rest, ";")) && driver_count < MAX) {
        struct driver *driver = &drivers[driver_count++];
        char *text;
        driver->first = n;
        while ((text = strsep(&group, ",")) && n < MAX)
            if (*text) {
                parse_device(&devices[n], text, n);
                n++;
            }
        driver->count = n - driver->first;
    }
    device_count = n;
    free(copy);
}

static uint32_t ze_init(uint32_t flags)
{
    const char *forced = getenv("STUB_ZE_INIT"), *legacy = getenv("ZES_ENABLE_SYSMAN");
    (void)flags;
    note("zeInit");
    if (sysman == NONE && legacy && !strcmp(legacy, "1"))
        sysman = FROM_CORE;
    return forced ? (uint32_t)strtoul(forced, NULL, 16) : OK;
}
static uint32_t zes_init(uint32_t flags)
{
    const char *forced = getenv("STUB_ZE_INIT");
    (void)flags;
    note("zesInit");
    if (forced)
        return (uint32_t)strtoul(forced, NULL, 16);
    if (sysman == FROM_CORE || !device_count)
        return UNINITIALIZED;
    sysman = ONLY;
    return OK;
}

/* The enumeration convention of the API: a zero count asks for the total. */
static uint32_t list(uint32_t *count, void **out, void *base, size_t size, uint32_t total)
{
    if (!count)
        return NULL_POINTER;
    if (!*count || *count > total)
        *count = total;
    for (uint32_t i = 0; out && i < *count; i++)
        out[i] = (char *)base + i * size;
    return OK;
}

static uint32_t driver_get(uint32_t *count, void **out)
{
    note("DriverGet");
    return list(count, out, drivers, sizeof *drivers, (uint32_t)driver_count);
}
static uint32_t device_get(struct driver *driver, uint32_t *count, void **out)
{
    note("DeviceGet");
    if (!driver)
        return NULL_HANDLE;
    return list(count, out, devices + driver->first, sizeof *devices, (uint32_t)driver->count);
}
static uint32_t driver_version(void *driver, uint32_t *version)
{
    (void)driver;
    *version = 0x10005;
    return OK;
}
static uint32_t driver_properties(void *driver, struct driver_properties *p)
{
    (void)driver;
    p->version = 1;
    return OK;
}

/* stype and pNext belong to the caller in every structure; only the payload is written. */
static void fill_core(struct core_properties *p, const struct device *d)
{
    p->type = TYPE_GPU;
    p->vendor = VENDOR;
    p->device = 0xbd5;
    p->flags = d->flags;
    memcpy(p->uuid, d->uuid, sizeof p->uuid);
    memcpy(p->name, d->name, sizeof p->name);
}
static uint32_t ze_properties(struct device *d, struct core_properties *p)
{
    note("zeDeviceGetProperties");
    if (!d || !p)
        return d ? NULL_POINTER : NULL_HANDLE;
    fill_core(p, d);
    return OK;
}
static uint32_t zes_properties(struct device *d, struct sysman_properties *p)
{
    note("zesDeviceGetProperties");
    if (sysman == NONE)
        return UNINITIALIZED;
    if (!d || !p)
        return d ? NULL_POINTER : NULL_HANDLE;
    fill_core(&p->core, d);
    p->subdevices = d->tiles;
    snprintf(p->serial, sizeof p->serial, "STUB-%d", (int)(d - devices));
    snprintf(p->board, sizeof p->board, "unknown");
    snprintf(p->brand, sizeof p->brand, "Stub");
    snprintf(p->model, sizeof p->model, "%.63s", d->name);
    snprintf(p->vendor, sizeof p->vendor, "Intel(R) Corporation");
    snprintf(p->version, sizeof p->version, "stub");
    for (struct head *h = p->head.next; h && !d->no_ext; h = h->next)
        if (h->stype == ZES_DEVICE_EXT_PROPERTIES) {
            struct ext_properties *e = (struct ext_properties *)h;
            memcpy(e->uuid, d->uuid, sizeof e->uuid);
            e->type = TYPE_GPU;
            e->flags = d->flags;
        }
    return OK;
}
static uint32_t zes_pci(struct device *d, struct pci_properties *p)
{
    note("zesDevicePciGetProperties");
    if (sysman == NONE)
        return UNINITIALIZED;
    if (!d || !p)
        return d ? NULL_POINTER : NULL_HANDLE;
    p->address = d->address;
    p->gen = 5;
    p->width = 16;
    p->bandwidth = 63000000000;
    memset(p->counters, 0, sizeof p->counters);
    return OK;
}
static uint32_t ze_pci(struct device *d, struct pci_ext_properties *p)
{
    note("zeDevicePciGetPropertiesExt");
    if (!d || !p)
        return d ? NULL_POINTER : NULL_HANDLE;
    p->address = d->address;
    return OK;
}
static uint32_t subdevices(struct device *d, uint32_t *count, struct subdevice_properties *out)
{
    uint32_t rc = list(count, NULL, NULL, 0, d->tiles);
    for (uint32_t i = 0; out && i < *count; i++) {
        out[i].id = i;
        memcpy(out[i].uuid, d->uuid, 16);
        out[i].uuid[14] = (uint8_t)(i + 1);
    }
    return rc;
}
static uint32_t no_subdevices(void *d, uint32_t *count, void **out)
{
    (void)d;
    return list(count, out, NULL, 0, 0);
}

/* Tables, by the position of each function in the public *_dditable_t structures. A loader only
 * asks for entries that its own version knows, and `version` says which that is. */
#define EXPORT __attribute__((visibility("default")))
#define V(major, minor) (((major) << 16) | (minor))
#define TABLE(get) EXPORT uint32_t get(uint32_t version, void **table); \
                   uint32_t get(uint32_t version, void **table)
#define EMPTY(get) TABLE(get) { (void)version; return table ? OK : NULL_POINTER; }

TABLE(zeGetGlobalProcAddrTable) { (void)version; table[0] = ze_init; return OK; }
TABLE(zeGetDriverProcAddrTable)
{
    (void)version;
    table[0] = driver_get;
    table[1] = driver_version;
    table[2] = driver_properties;
    return OK;
}
TABLE(zeGetDeviceProcAddrTable)
{
    (void)version;
    table[0] = device_get;
    table[1] = no_subdevices;
    table[2] = ze_properties;
    if (version >= V(1, 3))
        table[17] = ze_pci;
    return OK;
}
TABLE(zesGetGlobalProcAddrTable) { (void)version; table[0] = zes_init; return OK; }
TABLE(zesGetDriverProcAddrTable)
{
    if (version >= V(1, 5))
        table[2] = driver_get;
    return OK;
}
TABLE(zesGetDeviceProcAddrTable)
{
    table[0] = zes_properties;
    table[4] = zes_pci;
    if (version >= V(1, 5))
        table[29] = device_get;
    return OK;
}
TABLE(zesGetDeviceExpProcAddrTable)
{
    if (version >= V(1, 9))
        table[0] = subdevices;
    return OK;
}

/* Not answered, but a loader refuses a driver set in which none exports these. */
EMPTY(zeGetContextProcAddrTable) EMPTY(zeGetCommandQueueProcAddrTable)
EMPTY(zeGetCommandListProcAddrTable) EMPTY(zeGetEventProcAddrTable)
EMPTY(zeGetEventPoolProcAddrTable) EMPTY(zeGetFenceProcAddrTable) EMPTY(zeGetImageProcAddrTable)
EMPTY(zeGetKernelProcAddrTable) EMPTY(zeGetMemProcAddrTable) EMPTY(zeGetModuleProcAddrTable)
EMPTY(zeGetModuleBuildLogProcAddrTable) EMPTY(zeGetPhysicalMemProcAddrTable)
EMPTY(zeGetSamplerProcAddrTable) EMPTY(zeGetVirtualMemProcAddrTable)
EMPTY(zetGetDeviceProcAddrTable) EMPTY(zetGetContextProcAddrTable)
EMPTY(zetGetCommandListProcAddrTable) EMPTY(zetGetKernelProcAddrTable)
EMPTY(zetGetModuleProcAddrTable) EMPTY(zetGetDebugProcAddrTable) EMPTY(zetGetMetricProcAddrTable)
EMPTY(zetGetMetricGroupProcAddrTable) EMPTY(zetGetMetricQueryProcAddrTable)
EMPTY(zetGetMetricQueryPoolProcAddrTable) EMPTY(zetGetMetricStreamerProcAddrTable)
EMPTY(zetGetTracerExpProcAddrTable) EMPTY(zesGetDiagnosticsProcAddrTable)
EMPTY(zesGetEngineProcAddrTable) EMPTY(zesGetFabricPortProcAddrTable)
EMPTY(zesGetFanProcAddrTable) EMPTY(zesGetFirmwareProcAddrTable)
EMPTY(zesGetFrequencyProcAddrTable) EMPTY(zesGetLedProcAddrTable) EMPTY(zesGetMemoryProcAddrTable)
EMPTY(zesGetPerformanceFactorProcAddrTable) EMPTY(zesGetPowerProcAddrTable)
EMPTY(zesGetPsuProcAddrTable) EMPTY(zesGetRasProcAddrTable) EMPTY(zesGetSchedulerProcAddrTable)
EMPTY(zesGetStandbyProcAddrTable) EMPTY(zesGetTemperatureProcAddrTable)

#ifdef DIRECT
/* Built with -DDIRECT and -Wl,-soname,PATH the stub stands in for the loader itself, with none
 * installed: whatever then loads PATH gets this library, once it is in the process. */
#define PUBLIC(name, parameters, ...) EXPORT uint32_t name parameters; \
    uint32_t name parameters { return __VA_ARGS__; }
PUBLIC(zesInit, (uint32_t flags), zes_init(flags))
PUBLIC(zesDriverGet, (uint32_t *n, void **out), sysman == NONE ? UNINITIALIZED : driver_get(n, out))
PUBLIC(zesDeviceGet, (struct driver *d, uint32_t *n, void **out), device_get(d, n, out))
PUBLIC(zesDeviceGetProperties, (struct device *d, struct sysman_properties *p), zes_properties(d, p))
PUBLIC(zesDevicePciGetProperties, (struct device *d, struct pci_properties *p), zes_pci(d, p))
PUBLIC(zesDeviceGetSubDevicePropertiesExp,
       (struct device *d, uint32_t *n, struct subdevice_properties *p), subdevices(d, n, p))
#endif
