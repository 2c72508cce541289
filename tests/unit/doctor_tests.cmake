spc_unit_test(doctor_test SOURCES doctor_diagnose_test.cpp LIBS spc_doctor spc_base)
