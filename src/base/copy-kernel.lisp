;;;; Kernels that copy octets (clgrpc.kernel explains kernels).

(in-package #:clgrpc.base)

(define-kernel %prefetch ((address :word)) () ()
    "Prefetch the cache line at ADDRESS, which may be an invalid address, without waiting for it."
  (inst prefetch :t0 (memory 0 address)))

(define-kernel %copy-256 ((from :sap) (to :sap) (count :count)) (here)
    (:integers (limit) :vectors-256 (some others))
    "Copy COUNT octets, 64 at least, from FROM to TO, which do not overlap. This is faster than
memmove for unaligned addresses, because stores are aligned; most addresses are unaligned."
  (inst vmovdqu some (memory 0 from))
  (inst vmovdqu (memory 0 to) some)
  (inst mov here to)
  (inst and :dword here 31)
  (inst neg here)
  (inst add here 32)
  (inst lea limit (memory -64 count))
  LOOP
  (inst cmp here limit)
  (inst jmp :nbe LAST)
  (inst vmovdqu some (memory 0 from here))
  (inst vmovdqu others (memory 32 from here))
  (inst vmovdqu (memory 0 to here) some)
  (inst vmovdqu (memory 32 to here) others)
  (inst add here 64)
  (inst jmp LOOP)
  LAST                                  ; some of the last 64 octets may have been copied before
  (inst vmovdqu some (memory 0 from limit))
  (inst vmovdqu others (memory 32 from limit))
  (inst vmovdqu (memory 0 to limit) some)
  (inst vmovdqu (memory 32 to limit) others)
  (inst vzeroupper))
