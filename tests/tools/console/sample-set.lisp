;;;; Which calls are kept: the slowest of a minute, and the last that failed, within bounds.

(in-package #:clgrpc.tests.console)

(defun offer (sample-set name ns &key (ok t) (now 0) (described (list 0)))
  "Tell SAMPLE-SET of a call NAME that took NS; DESCRIBED is a cell that counts those looked at
closely."
  (console::note-call sample-set name ok ns now (lambda (call)
                                                  (incf (car described))
                                                  (list :method call))))

(defun kept-names (sample-set)
  (sort (mapcar (lambda (sample) (getf (console::sample-plist sample) :method))
                (console::sample-set-calls sample-set))
        #'<))

(test the-slowest-are-kept
  (let ((sample-set (console::make-sample-set)) (described (list 0)))
    ;; in an order in which every other one is faster than all before
    (dotimes (i 1000) (offer sample-set (mod (* 7 i) 1000) (* 1000 (mod (* 7 i) 1000))
                             :described described))
    (is (equal (loop for i from 984 below 1000 collect i) (kept-names sample-set)))
    (is (< (car described) 200))
    (setf (car described) 0)
    (dotimes (i 1000) (offer sample-set 1 1000 :described described))
    (is (zerop (car described)) "a fast call is not looked at")))

(test the-minute-before-is-kept-too
  "And the two slowest of each minute before that, for an hour."
  (let ((sample-set (console::make-sample-set)) (minute console::+minute-ns+))
    (offer sample-set 1 1000000 :now 1)
    (dotimes (i 20) (offer sample-set 2 10 :now (+ minute 1)))
    (is (equal (cons 1 (loop repeat 16 collect 2)) (kept-names sample-set)))
    (offer sample-set 3 5 :now (+ 1 (* 2 minute)))
    (is (equal (append '(1) (loop repeat 16 collect 2) '(3)) (kept-names sample-set)))
    (offer sample-set 4 5 :now (+ 1 (* 4 minute)))
    (offer sample-set 5 5 :now (+ 2 (* 5 minute)))
    (is (equal '(1 2 2 3 4 5) (kept-names sample-set)))
    (loop for i from 6 below 200
          do (dotimes (j 4) (offer sample-set i (+ 5 j) :now (+ i (* i minute)))))
    (let ((names (kept-names sample-set)))
      (is (= 138 (first names)) "an hour of them, and two minutes")
      (is (= (+ console::+remembered-calls+ 8) (length names)))
      (is (= 2 (count 150 names)))
      (is (= 4 (count 198 names))))))

(test failures-are-kept-within-bounds
  (let ((sample-set (console::make-sample-set)) (described (list 0)))
    (dotimes (i 100) (offer sample-set i 10 :ok nil :described described))
    (is (equal (loop for i below console::+failures-per-second+ collect i) (kept-names sample-set)))
    (is (= console::+failures-per-second+ (car described)))
    (loop for second from 1 to 5
          do (dotimes (i 100)
               (offer sample-set (+ (* 100 second) i) 10 :ok nil :now (* second +ns-per-second+))))
    (let ((names (kept-names sample-set)))
      (is (= console::+failed-calls+ (length names)))
      (is (= 509 (first (last names)))))))

(test kept-calls-are-numbered-in-their-order
  (let ((sample-set (console::make-sample-set)))
    (dotimes (i 5) (offer sample-set i 10 :ok nil))
    (is (equal '(0 1 2 3 4)
               (mapcar (lambda (sample) (getf (console::sample-plist sample) :method))
                       (sort (console::sample-set-calls sample-set) #'<
                             :key #'console::sample-number))))))
