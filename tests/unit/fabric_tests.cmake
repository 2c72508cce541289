spc_unit_test(frameworks_test SOURCES hook_frameworks_test.cpp LIBS spc_hooks spc_base)
