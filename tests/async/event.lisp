;;;; Timers for users.

(in-package #:clgrpc.tests.async)

(defun run-turns (loop count)
  (dotimes (i count) (settle loop)))

(test delays-come-in-their-order
  (let ((order '()))
    (with-program ()
      (loop for (time . name) in '((0.03 . :c) (0.01 . :a) (nil . :now) (0.02 . :b))
            do (let ((name name)) (delay (lambda () (push name order)) :time time))))
    (is (equal '(:c :b :a :now) order))))

(test delays-do-not-come-early
  (let ((begin (monotonic-ns)) (end 0))
    (with-program () (with-delay (0.05) (setf end (monotonic-ns))))
    (is (>= (- end begin) 50000000))))

(test times-of-many-centuries
  "They are later than any clock can say, and so mean never."
  (let ((forever most-positive-fixnum) (connected nil))
    (with-program ()
      (let ((event (delay (lambda () (fail "never")) :time forever))
            (end (interval (lambda () (fail "never")) :time forever))
            (server (tcp-server nil 0 #'list :read-timeout forever :write-timeout forever)))
        (tcp-connect "127.0.0.1" (server-port server) #'list
                     :data "x" :connect-timeout forever :read-timeout forever
                     :write-timeout forever
                     :connect-cb (lambda (socket)
                                   (setf connected t)
                                   (cancel event)
                                   (funcall end)
                                   (close-socket socket)
                                   (close-tcp-server server)))))
    (is-true connected)))

(test cancelled-delays
  (with-program ()
    (let ((event (delay (lambda () (fail "cancelled")) :time 0.01)))
      (cancel event)
      (cancel event)
      (delay (constantly nil) :time 0.03))))

(test intervals-do-not-drift
  "Each is due a period after the one before was, however late that came. The clock stands still
between shifts, since a busy machine may take long to get from one to the next."
  (let ((now (list (monotonic-ns))))
    (with-loops (loop) (:clock (lambda () (car now)))
      (let* ((shift (lambda (seconds) (incf (car now) (seconds-ns seconds))))
             (count 0)
             (end (interval (lambda () (incf count)) :time 10 :loop loop)))
        (settle loop)
        (loop for seconds in '(9.9 0.2 9.7 0.3 9.6)
              for expected in '(0 1 1 2 2)
              do (funcall shift seconds)
                 (run-turns loop 2)
                 (is (= expected count)))
        ;; what is past is left out
        (funcall shift 55)
        (run-turns loop 2)
        (is (= 3 count))
        (funcall shift 6)
        (run-turns loop 2)
        (is (= 4 count) "due when it would have been")
        (funcall end)
        (funcall shift 100)
        (run-turns loop 2)
        (is (= 4 count))))))

(test ends-of-intervals
  (dolist (end (list #'funcall #'remove-interval #'cancel))
    (let ((count 0))
      (with-program ()
        (let (interval)
          (setf interval (with-interval (0.002)
                           (when (= 3 (incf count)) (funcall end interval))))))
      (is (= 3 count))))
  (with-program ()
    (signals misuse (interval #'list :time 0))
    (signals misuse (interval #'list))))

(test events-by-hand
  (let ((count 0))
    (with-program ()
      (let ((event (make-event (lambda () (incf count)))))
        (add-event event :activate t)
        (delay (lambda ()
                 (is (= 1 count))
                 (add-event event :timeout 1000)
                 (add-event event)
                 (delay (lambda ()
                          (is (= 2 count))
                          (add-event event :timeout 0.001)
                          (remove-event event)
                          (is-false (event-freed-p event))
                          (free-event event)
                          (is-true (event-freed-p event))
                          (signals misuse (add-event event)))
                        :time 0.005))
               :time 0.005)))
    (is (= 2 count))))
