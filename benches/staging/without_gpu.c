/*
 * A library libcuda.so.1 for machines without a GPU: it knows no memory of a GPU, so all memory is
 * that of the host. KvikIO asks the driver for the kind of each address, and reads no object of a
 * server without the library, not even into memory of the host. remote_rivals.py builds it if the
 * machine has no driver. Of these functions KvikIO calls the first three and
 * cuPointerGetAttribute.
 */

enum { SUCCESS = 0, INVALID_VALUE = 1 };

int cuInit(unsigned flags) {
    (void)flags;
    return SUCCESS;
}

/* Version 12.0, which has no batches of copies. */
int cuDriverGetVersion(int *version) {
    *version = 12000;
    return SUCCESS;
}

/* Clears the answers, as for memory that the driver does not know. They have 4 bytes or more. */
int cuPointerGetAttributes(unsigned count, const int *attributes, void **answers, unsigned long long address) {
    (void)attributes, (void)address;
    for (unsigned n = 0; n < count; n++) {
        *(unsigned *)answers[n] = 0;
    }
    return SUCCESS;
}

#define REFUSED(name)           \
    int name(void) {            \
        return INVALID_VALUE;   \
    }

REFUSED(cuPointerGetAttribute)
REFUSED(cuCtxCreate_v2)
REFUSED(cuCtxDestroy_v2)
REFUSED(cuCtxGetCurrent)
REFUSED(cuCtxGetDevice)
REFUSED(cuCtxPopCurrent_v2)
REFUSED(cuCtxPushCurrent_v2)
REFUSED(cuDeviceGet)
REFUSED(cuDeviceGetAttribute)
REFUSED(cuDeviceGetCount)
REFUSED(cuDevicePrimaryCtxRelease_v2)
REFUSED(cuDevicePrimaryCtxRetain)
REFUSED(cuEventCreate)
REFUSED(cuEventDestroy_v2)
REFUSED(cuEventQuery)
REFUSED(cuEventRecord)
REFUSED(cuEventSynchronize)
REFUSED(cuGetErrorName)
REFUSED(cuGetErrorString)
REFUSED(cuLaunchHostFunc)
REFUSED(cuMemFreeHost)
REFUSED(cuMemGetAddressRange_v2)
REFUSED(cuMemHostAlloc)
REFUSED(cuMemHostRegister_v2)
REFUSED(cuMemHostUnregister)
REFUSED(cuMemcpyAsync)
REFUSED(cuMemcpyDtoHAsync_v2)
REFUSED(cuMemcpyHtoDAsync_v2)
REFUSED(cuStreamCreate)
REFUSED(cuStreamDestroy_v2)
REFUSED(cuStreamSynchronize)
