#pragma once
// Catch2 2.13 (Debian 12) or 3 (Debian 13, Ubuntu 24.04) for all tests in C++.

#define CATCH_CONFIG_ENABLE_OPTIONAL_STRINGMAKER
#if __has_include(<catch2/catch_test_macros.hpp>)
#include <catch2/catch_test_macros.hpp>
#else
// Version 2 is one header of 18,000 lines. With this macro an exception in a CHECK ends the test
// case, as in a REQUIRE.
#define CATCH_CONFIG_FAST_COMPILE
#define CATCH_CONFIG_DISABLE_MATCHERS
#include <catch2/catch.hpp>
// This macro would parse each expression again, for warnings that the assertion gives as well.
#undef CATCH_INTERNAL_IGNORE_BUT_WARN
#define CATCH_INTERNAL_IGNORE_BUT_WARN(...)
#endif

namespace spc {

/// Runs the program's test cases with Catch2's command line. Returns the exit status, 0 if all
/// passed.
int run_tests(int argc, char** argv);

}  // namespace spc
