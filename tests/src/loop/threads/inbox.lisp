;;;; The inbox: order, one wake-up per sleep, no losses and no missed wake-ups with many producers,
;;;; closing.

(in-package #:clgrpc.tests.loop)

(defun drained (inbox)
  (let ((items '()))
    (drain-inbox inbox (lambda (item) (push item items)))
    (nreverse items)))

(test inbox-keeps-order
  (let ((inbox (make-inbox)))
    (is-true (inbox-empty-p inbox))
    (is (null (drained inbox)))
    (dotimes (i 5) (is (null (push-inbox inbox i))))
    (is-false (inbox-empty-p inbox))
    (is (equal '(0 1 2 3 4) (drained inbox)))
    (is-true (inbox-empty-p inbox))))

(test inbox-wakes-once
  (let ((inbox (make-inbox)))
    (is-true (doze-inbox inbox))
    (is (eq t (push-inbox inbox :a)))
    (is (null (push-inbox inbox :b)))
    (confirm-wake inbox)
    (is-false (doze-inbox inbox) "the inbox is not empty")
    (is (equal '(:a :b) (drained inbox)))
    (is-true (doze-inbox inbox))
    (rouse-inbox inbox)
    (is (null (push-inbox inbox :c)))))

(test inbox-does-not-close-before-its-waker-is-done
  (let ((inbox (make-inbox)) (woken nil) (closed nil))
    (doze-inbox inbox)
    (is (eq t (push-inbox inbox :a)))
    (let ((closer (in-thread
                    (close-inbox inbox)
                    (setf closed (if woken :after :before)))))
      (loop until (eq :closed (push-inbox inbox :b)) do (sb-thread:thread-yield))
      (is (null closed))
      (setf woken t)
      (confirm-wake inbox)
      (sb-thread:join-thread closer)
      (is (eq :after closed)))))

(test inbox-survives-a-failing-consumer
  (let ((inbox (make-inbox)))
    (dotimes (i 3) (push-inbox inbox i))
    (signals error (drain-inbox inbox (lambda (item) (when (= 1 item) (error "broken")))))
    (push-inbox inbox 3)
    (is (equal '(2 3) (drained inbox)))))

(test inbox-items-pushed-while-draining-wait
  (let ((inbox (make-inbox)) (items '()))
    (push-inbox inbox 0)
    (drain-inbox inbox (lambda (item) (push item items) (push-inbox inbox 1)))
    (is (equal '(0) items))
    (is (equal '(1) (drained inbox)))))

(test inbox-keeps-what-was-too-much
  (let ((inbox (make-inbox)) (items '()))
    (dotimes (i 4) (push-inbox inbox i))
    (drain-inbox inbox (lambda (item) (push item items) (if (= 1 item) :enough t)))
    (is (equal '(1 0) items))
    (is-false (doze-inbox inbox))
    (push-inbox inbox 4)
    (is (equal '(2 3 4) (drained inbox)))))

(test inbox-closes
  (let ((inbox (make-inbox)))
    (push-inbox inbox :a)
    (is-false (doze-inbox inbox))
    (close-inbox inbox)
    (is (eq :closed (push-inbox inbox :b)))
    (is (equal '(:a) (drained inbox)))
    (is (eq :closed (push-inbox inbox :c)))
    (is (search "closed" (princ-to-string inbox)))))

(test closing-an-inbox-waits-no-longer-than-it-may-for-a-waker
  "A thread that was stopped in the middle of a push delays others only for a limited time."
  (let ((inbox (make-inbox)))
    (doze-inbox inbox)
    (is (eq t (push-inbox inbox :a)))   ; and is not confirmed
    (is-false (close-inbox inbox))
    (is (eq :closed (push-inbox inbox :b)))
    (confirm-wake inbox)
    (is-true (close-inbox inbox))))

(defun consume (inbox semaphore count)
  "Sleep and drain until COUNT items have come; return them in order. WAITQUEUE wakes it."
  (let ((items '()) (taken 0))
    (loop while (< taken count)
          do (when (doze-inbox inbox)
               (unless (sb-thread:wait-on-semaphore semaphore :timeout 20)
                 (return))
               (rouse-inbox inbox))
             (drain-inbox inbox (lambda (item) (push item items) (incf taken))))
    (nreverse items)))

(test inbox-with-many-producers
  (let* ((inbox (make-inbox)) (semaphore (sb-thread:make-semaphore)) (producers 4) (each 20000)
         (threads (loop for p below producers
                        collect (let ((p p))
                                  (in-thread
                                    (dotimes (i each)
                                      (when (push-inbox inbox (cons p i))
                                        (sb-thread:signal-semaphore semaphore)
                                        (confirm-wake inbox))
                                      (when (zerop (mod i 50)) (sb-thread:thread-yield)))))))
         (items (consume inbox semaphore (* producers each))))
    (mapc #'sb-thread:join-thread threads)
    (is (= (* producers each) (length items)) "the consumer was left asleep")
    (dotimes (p producers)
      (is (equal (loop for i below each collect i)
                 (loop for (from . i) in items when (= from p) collect i))))))
