;;;; Uninitialized vectors are ordinary vectors, also for the collector.

(in-package #:clgrpc.tests.base)

(test raw-vectors-are-vectors
  (macrolet ((check (type value)
               `(dolist (length '(0 1 7 8191 8192 16384 65535 65536 65537 100001 300000))
                  (let ((vector (make-raw-vector length ,type)))
                    (is (typep vector '(simple-array ,type (*))))
                    (is (= length (length vector)))
                    (fill vector ,value)
                    (is (every (lambda (element) (eql element ,value)) vector))))))
    (check octet 255)
    (check (signed-byte 32) -2)
    (check (unsigned-byte 64) (1- (expt 2 64)))
    (check single-float 1.5f0)
    (check double-float -1.5d0)))

(defun churn (seed)
  "Make raw vectors among other garbage, and keep a few; true if these do not change."
  (let ((kept (make-array 20 :initial-element nil)))
    (dotimes (i 3000 t)
      (let* ((place (mod (* i (+ 7 seed)) 20))
             (old (svref kept place))
             (length (+ 60000 (mod (* i 7919) 100000)))
             (vector (make-raw-vector length octet)))
        (when old
          (unless (loop for j below (length old) by 997 always (= (aref old j) (mod place 256)))
            (return nil)))
        (fill vector place)
        (setf (svref kept place)
              (if (zerop (mod i 3)) (shorten-octets vector 5 (- length 9)) vector))
        (make-list 50)))))

(test raw-vectors-survive-collections
  "Three threads make them while a fourth collects."
  (let* ((stop nil)
         (collector (in-thread (loop until stop do (sb-ext:gc) (sb-ext:gc :gen 1))))
         (threads (loop for seed below 3
                        collect (sb-thread:make-thread #'churn :arguments (list seed)))))
    (is (every #'sb-thread:join-thread threads))
    (setf stop t)
    (sb-thread:join-thread collector)
    ;; the freed pages now serve objects that must begin as zeros
    (is (loop repeat 2000 always (every #'zerop (make-array 2000 :initial-element 0))))
    (is (loop repeat 200 always (every #'zerop (make-array 30000 :element-type 'octet))))))
