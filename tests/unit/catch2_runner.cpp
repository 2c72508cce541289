// Catch2's implementation, compiled once for all test programs (version 2 has it in its header).

#if __has_include(<catch2/catch_session.hpp>)
#include <catch2/catch_session.hpp>
#else
#define CATCH_CONFIG_RUNNER
#endif
#include "catch2_compat.hpp"

int spc::run_tests(int argc, char** argv) { return Catch::Session().run(argc, argv); }
