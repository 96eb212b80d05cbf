;;;; How much permanent data is collected: the report of a process that has 300 MB of it. The test in
;;;; image.lisp loads this file into an image of its own. If CLGRPC_OLDER is true, a full collection
;;;; makes the data old before the collector is tuned.

(in-package #:clgrpc.base)

(defun make-records (count)
  "COUNT lists, each of 4.8 MB."
  (loop repeat count collect (loop for i below 300000 collect i)))

(defvar *records* '())

(defun load-records ()
  (setf *records* (make-records 64)))

(defun generation ()
  (sb-kernel:generation-of (first *records*)))

(defun address ()
  (sb-kernel:get-lisp-obj-address (first *records*)))

(defun collect-twice ()
  "Collect the nursery until its survivors are a generation older."
  (sb-ext:gc)
  (sb-ext:gc))

(defun stays-p (function)
  "True if FUNCTION does not move the records."
  (let ((before (address)))
    (funcall function)
    (= before (address))))

(cond ((sb-ext:posix-getenv "CLGRPC_OLDER")
       (load-records)
       (sb-ext:gc :full t)
       (tune-collector))
      (t (tune-collector :load #'load-records)))

(with-standard-io-syntax
  (print (list :generation (generation)
               :least-nursery (= +least-nursery-octets+ (sb-ext:bytes-consed-between-gcs))
               :new (progn (push (list 1 2 3) *records*)
                           (collect-twice)
                           (generation))
               :stays (progn (pop *records*)
                             (mapcar #'stays-p '(collect-twice collect-young give-memory-back)))
               :stays-while-grown
               (when (< 1000000000 (heap-size))
                 (stays-p (lambda ()
                            (let ((more (make-records 90)))
                              (collect-twice)
                              (first more)))))
               :freed (progn (setf *records* '())
                             (collect-everything)
                             (< (heap-used) 200000000)))))
