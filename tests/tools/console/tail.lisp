;;;; The log's tail: the last events, as text, within bounds.

(in-package #:clgrpc.tests.console)

(defun say-number (tail number)
  (console::add-event tail :info :number (list :number number)))

(defun tail-numbers (tail &optional (after 0))
  "What SAY-NUMBER has said to TAIL after the entry AFTER."
  (loop for entry in (console::entries-after tail after)
        collect (parse-integer (getf (console::entry-plist entry) :number))))

(test events-become-text
  (let ((tail (console::make-tail)) (list (list 1 2)))
    (console::add-event tail :info :one (list :reason (format nil "a~%b~C" (code-char 27))
                                              :what list
                                              :nothing nil
                                              :stages '(:stage :answer :queue 1.25d-5)
                                              :long (make-string 5000 :initial-element #\x)))
    (setf (first list) 3)
    (let* ((entry (first (console::entries-after tail 0))) (plist (console::entry-plist entry)))
      (is (eq :info (console::entry-level entry)))
      (is (string= "a\\nb\\x1b" (getf plist :reason)))
      (is (string= "(1 2)" (getf plist :what)) "as it was when it was logged")
      (is (string= "(stage answer queue 1.25e-5)" (getf plist :stages)) "as the log writes it")
      (is (eq :none (getf plist :nothing :none)))
      (is (= (1+ console::+value-characters+) (length (getf plist :long)))))))

(test the-last-events-are-there
  (let ((tail (console::make-tail)) (lost 0))
    (dotimes (i 40) (say-number tail i))
    (is (equal (loop for i below 40 collect i) (tail-numbers tail)))
    (is (equal '(38 39) (tail-numbers tail 38)))
    (is (null (tail-numbers tail 40)))
    ;; a flood
    (dotimes (i 1000) (say-number tail i))
    (setf lost (console::tail-dropped tail))
    (is (<= 900 lost 990))
    (is (= (- 1040 lost) (console::tail-count tail)))))

(test a-ring-of-events
  (let ((tail (console::make-tail)) (count (+ 7 console::+tail-events+)))
    (loop for i below count
          do (setf (console::tail-second-ns tail) 0) ; another second
             (say-number tail i))
    (is (equal (loop for i from 7 below count collect i) (tail-numbers tail)))
    (is (equal (loop for i from 7 below count collect i) (tail-numbers tail 3)))
    (is (equal (list (1- count)) (tail-numbers tail (1- count))))))

(test calls-push-nothing-else-out
  "However many calls the access log tells of, other events stay, and both are in order."
  (let ((tail (console::make-tail)))
    (say-number tail 1)
    (loop for i below 1000
          do (setf (console::tail-second-ns tail) 0)
             (console::add-event tail :info :call (list :number i)))
    (say-number tail 2)
    (let ((entries (console::entries-after tail 0)))
      (is (= (+ 2 console::+tail-events+) (length entries)))
      (is (apply #'< (mapcar #'console::entry-number entries)))
      (is (equal '(:number :call :number)
                 (list (console::entry-event (first entries))
                       (console::entry-event (second entries))
                       (console::entry-event (first (last entries)))))))))
