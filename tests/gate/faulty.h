// The faulty library (faulty_library.cpp) as a configuration of the gates.
#pragma once

#include <gtest/gtest.h>

#include <cstdlib>
#include <string>

#include "gate/configuration.h"

namespace tessera::testing {

// From now on, in this process, the library behaves so.
inline Configuration faulty(const std::string& fault) {
  ::setenv("TESSERA_TEST_FAULT", fault.c_str(), 1);
  Result<Configuration> c = parse_configuration(std::string("library=") + TESSERA_FAULTY_LIBRARY);
  EXPECT_TRUE(c.ok()) << c.status().text();
  return c.value();
}

}  // namespace tessera::testing
