// What `tensors.cpp` adds to the extension.
#pragma once
#include "running.h"

namespace ndpool {

extern PyMethodDef tensor_methods[];  // ends in nulls
bool make_tensor_types();

}  // namespace ndpool
