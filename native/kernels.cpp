// Compiled once for each instruction set, as NDPOOL_ISA. Everything but the table has internal linkage: the linker
// keeps one copy of an inline function with external linkage, and it might be the copy with instructions this
// processor lacks.
#include "kernels.h"

#define NAME_(isa) kernels_##isa
#define NAME(isa) NAME_(isa)
#define TEXT_(isa) #isa
#define TEXT(isa) TEXT_(isa)

namespace ndpool {

extern const Kernels NAME(NDPOOL_ISA) = {TEXT(NDPOOL_ISA)};

} // namespace ndpool
