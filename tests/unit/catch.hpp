#pragma once
// Debian 12 has Catch2 2.13, Debian 13 and Ubuntu 24.04 have Catch2 3.
#ifdef SPC_CATCH2_V2
#include <catch2/catch.hpp>
#else
#include <catch2/catch_all.hpp>
#endif
