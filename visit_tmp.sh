mkdir -p /tmp/b /tmp/o && tar -xJf target/gpu4.tar.xz -C /tmp/b || exit 3
cd /tmp/b/lab; timeout 25 ./lab pad16 p16.cubin ring 1 pad0 p0.cubin ring 1 pad32 p32.cubin ring 1 pad64 p64.cubin ring 1 pad128 p128.cubin ring 1 p128nomath p128_nomath.cubin ring 1 p128nohint p128_nohint.cubin ring 1 > /tmp/o/lab.txt 2>&1; cat /tmp/o/lab.txt
timeout 35 gh/gemm_hopper_time gh > /tmp/o/gh.txt 2>&1; cat /tmp/o/gh.txt
cp /tmp/o/* $OUT/
