;;;; TUNE-COLLECTOR does what it says; the image is left as it was.

(in-package #:clgrpc.tests.base)
(in-suite :clgrpc.base)

(defun resident-octets ()
  (with-open-file (in "/proc/self/statm")
    (read in)
    (* 4096 (read in))))

(test tuned-collector
  "It has its sizes, keeps what it frees, and gives that back when it collects everything."
  (let ((nursery (sb-ext:bytes-consed-between-gcs))
        (second (sb-ext:generation-bytes-consed-between-gcs 1))
        (limit (sb-sys:find-foreign-symbol-address "small_generation_limit")))
    (unwind-protect
         (progn
           (tune-collector)
           (is (<= (sb-ext:bytes-consed-between-gcs) (* 200 1024 1024)))
           (is (= (floor (sb-ext:dynamic-space-size) 4)
                  (sb-ext:generation-bytes-consed-between-gcs 1)))
           (dotimes (i 100) (fill (make-octets 1000000) 1))
           (sb-ext:gc :gen 2)
           (let ((kept (resident-octets)))
             (sb-ext:gc :full t)
             (is (< (resident-octets) (- kept 50000000)))))
      (setf (sb-ext:bytes-consed-between-gcs) nursery
            (sb-ext:generation-bytes-consed-between-gcs 1) second)
      (when limit (setf (sb-sys:sap-ref-8 (sb-sys:int-sap limit) 0) 1))
      (sb-ext:gc :gen 1))))
