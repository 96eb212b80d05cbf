;;;; TUNE-COLLECTOR does what it says; the image is left as it was.

(in-package #:clgrpc.tests.base)
(in-suite :clgrpc.base)

(defun resident-octets ()
  (with-open-file (in "/proc/self/statm")
    (read in)
    (* 4096 (read in))))

(defun call-tuned (function)
  "Call FUNCTION, which tunes the collector, and leave that as it was."
  (let ((nursery (sb-ext:bytes-consed-between-gcs))
        (second (sb-ext:generation-bytes-consed-between-gcs 1))
        (limit (sb-sys:find-foreign-symbol-address "small_generation_limit")))
    (unwind-protect (funcall function)
      (setf (sb-ext:bytes-consed-between-gcs) nursery
            (sb-ext:generation-bytes-consed-between-gcs 1) second)
      (when limit (setf (sb-sys:sap-ref-8 (sb-sys:int-sap limit) 0) 1))
      (sb-ext:gc :gen 1))))

(defmacro with-tuned-collector (&body body)
  "Evaluate BODY as CALL-TUNED does."
  `(call-tuned (lambda () ,@body)))

(defvar *records* '() "Many small objects that live.")

(test full-collections-are-worth-their-time
  "What lives when the collector is tuned is not copied again; a full collection of much live data
is due when there is twice as much."
  (with-tuned-collector
    (setf *records* (loop for i below 4000000 collect i)) ; 64 MB
    (tune-collector)
    (when (fboundp 'sb-kernel:generation-of)
      (is (= sb-vm:+highest-normal-generation+ (sb-kernel:generation-of (nthcdr 1000 *records*)))))
    (is-false (full-collection-due-p))
    (let ((live (heap-used))
          (more (loop for i below 3000000 collect i))) ; 48 MB
      (is (< (* 5 live) (* 4 (heap-used)) (* 8 live)))
      (is-false (full-collection-due-p))
      (let ((most (loop for i below (floor live 16) collect i)))
        (is-true (full-collection-due-p))
        (is (< 0 (length most))))
      (is (= 3000000 (length more))))
    (setf *records* '())))

(test tuned-collector
  "It has its sizes, keeps what it frees, and gives that back when it collects everything."
  (with-tuned-collector
    (tune-collector)
    (is (<= (sb-ext:bytes-consed-between-gcs) (* 200 1024 1024)))
    (is (= (floor (sb-ext:dynamic-space-size) 4)
           (sb-ext:generation-bytes-consed-between-gcs 1)))
    (dotimes (i 100) (fill (make-octets 1000000) 1))
    (sb-ext:gc :gen 2)
    (let ((kept (resident-octets)))
      (sb-ext:gc :full t)
      (is (< (resident-octets) (- kept 50000000))))))
