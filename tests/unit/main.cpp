#include "unit/catch2_compat.hpp"

int main(int argc, char** argv) { return spc::run_tests(argc, argv); }
