;;;; Which calls are kept: the slowest of a minute, and the last that failed, within bounds.

(in-package #:clgrpc.tests.console)
(in-suite :clgrpc.console)

(defun offer (album name ns &key (ok t) (now 0) (described (list 0)))
  "Tell ALBUM of a call NAME that took NS; DESCRIBED is a cell that counts those looked at closely."
  (console::note-call album name ok ns now (lambda (call)
                                             (incf (car described))
                                             (list :method call))))

(defun kept-names (album)
  (sort (mapcar (lambda (kept) (getf (console::kept-plist kept) :method))
                (console::album-calls album))
        #'<))

(test the-slowest-are-kept
  (let ((album (console::make-album)) (described (list 0)))
    ;; in an order in which every other one is faster than all before
    (dotimes (i 1000) (offer album (mod (* 7 i) 1000) (* 1000 (mod (* 7 i) 1000))
                             :described described))
    (is (equal (loop for i from 984 below 1000 collect i) (kept-names album)))
    (is (< (car described) 200))
    (setf (car described) 0)
    (dotimes (i 1000) (offer album 1 1000 :described described))
    (is (zerop (car described)) "a fast call is not looked at")))

(test the-minute-before-is-kept-too
  (let ((album (console::make-album)) (minute console::+minute-ns+))
    (offer album 1 1000000 :now 1)
    (dotimes (i 20) (offer album 2 10 :now (+ minute 1)))
    (is (equal (cons 1 (loop repeat 16 collect 2)) (kept-names album)))
    (offer album 3 5 :now (+ 1 (* 2 minute)))
    (is (equal (append (loop repeat 16 collect 2) '(3)) (kept-names album)))
    (offer album 4 5 :now (+ 1 (* 4 minute)))
    (offer album 5 5 :now (+ 2 (* 5 minute)))
    (is (equal '(4 5) (kept-names album)))))

(test failures-are-kept-within-bounds
  (let ((album (console::make-album)) (described (list 0)))
    (dotimes (i 100) (offer album i 10 :ok nil :described described))
    (is (equal (loop for i below console::+failures-per-second+ collect i) (kept-names album)))
    (is (= console::+failures-per-second+ (car described)))
    (loop for second from 1 to 5
          do (dotimes (i 100)
               (offer album (+ (* 100 second) i) 10 :ok nil :now (* second +ns-per-second+))))
    (let ((names (kept-names album)))
      (is (= console::+failed-calls+ (length names)))
      (is (= 509 (first (last names)))))))

(test kept-calls-are-numbered-in-their-order
  (let ((album (console::make-album)))
    (dotimes (i 5) (offer album i 10 :ok nil))
    (is (equal '(0 1 2 3 4)
               (mapcar (lambda (kept) (getf (console::kept-plist kept) :method))
                       (sort (console::album-calls album) #'< :key #'console::kept-number))))))
