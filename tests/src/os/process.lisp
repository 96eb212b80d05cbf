;;;; The kernel's data about this process, compared with other sources.

(in-package #:clgrpc.tests.os)

(test the-process-is-told-of
  (let ((process (os:read-process)))
    (is (< 0 (os:process-cpu-seconds process) 1000000))
    (is (< 1500000000 (os:process-start-seconds process)
           (- (get-universal-time) (encode-universal-time 0 0 0 1 1 1970 0) -2)))
    (is (<= (length (sb-thread:list-all-threads)) (os:process-threads process) 1000))
    (is (< (sb-kernel:dynamic-usage) (os:process-virtual-octets process)))
    (is (< 1000000 (os:process-resident-octets process) (os:process-virtual-octets process)))))

(test time-on-processors-grows
  (let ((before (os:process-cpu-seconds (os:read-process)))
        (end (+ (get-internal-real-time) (* 10 internal-time-units-per-second))))
    (is (loop while (< (get-internal-real-time) end)
              thereis (< before (os:process-cpu-seconds (os:read-process)))))))

(test resident-memory-is-in-octets
  "The number agrees with /proc/self/status, which has kilobytes."
  (let* ((text (uiop:read-file-string "/proc/self/status"))
         (start (search "VmRSS:" text))
         (kilobytes (parse-integer text :start (+ start 6) :junk-allowed t))
         (octets (os:process-resident-octets (os:read-process))))
    (is (< (* 1/2 1024 kilobytes) octets (* 2 1024 kilobytes)))))

(test the-time-of-all-processors-is-told
  (multiple-value-bind (total idle) (os:processor-ticks)
    (is (< 0 idle total))
    (is (<= total (os:processor-ticks)))))
