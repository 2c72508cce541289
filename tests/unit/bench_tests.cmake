# The arithmetic of benchmarks/: no GPU, no MPI and no toolkit is needed.
set(bench ${PROJECT_SOURCE_DIR}/benchmarks)
spc_unit_test(bench_arithmetic_test SOURCES bench_arithmetic_test.cpp ${bench}/cuda/cpu.cpp ${bench}/nccl/threads.cpp
              LIBS Threads::Threads)
