;;;; Idlers, notifiers, descriptors of the user's.

(in-package #:clgrpc.tests.async)

(test idlers
  (let ((count 0) (idler nil))
    (with-program ()
      (setf idler (idle (lambda ()
                          (when (= 100 (incf count))
                            (free-idler idler)
                            (is-true (idler-freed-p idler)))))))
    (is (= 100 count)))
  (let ((told '()) (idler nil))
    (with-program (:catch-app-errors t)
      (setf idler (idle (lambda () (error 'mishap))
                        :event-cb (lambda (event)
                                    (push (type-of event) told)
                                    (when (= 3 (length told)) (cancel idler))))))
    (is (equal '(mishap mishap mishap) told))))

(test notifiers
  (let ((count 0) (once 0))
    (with-program ()
      (let ((notifier nil) (single nil))
        (setf notifier (make-notifier (lambda ()
                                        (when (= 20 (incf count))
                                          (free-notifier notifier)
                                          (is-true (notifier-freed-p notifier))))
                                      :single-shot nil)
              single (make-notifier (lambda () (incf once))))
        (trigger-notifier single)
        (dotimes (i 2)
          (in-thread (dotimes (j 10) (trigger-notifier notifier))))
        (delay (lambda ()
                 (is-true (notifier-freed-p single))
                 (signals misuse (trigger-notifier single)))
               :time 0.01)))
    (is (= 20 count))
    (is (= 1 once))))

(defun call-with-pipe (function)
  (multiple-value-bind (in out) (sb-posix:pipe)
    (unwind-protect (funcall function in out)
      (sb-posix:close in)
      (sb-posix:close out))))

(defun put-octets (descriptor count)
  (let ((octets (make-octets count)))
    (sb-sys:with-pinned-objects (octets)
      (sb-posix:write descriptor (sb-sys:vector-sap octets) count))))

(defun take-octet (descriptor)
  (let ((octets (make-octets 1)))
    (sb-sys:with-pinned-objects (octets)
      (sb-posix:read descriptor (sb-sys:vector-sap octets) 1))))

(test descriptors-of-the-user
  "They are told as long as they are readable, although what is there is read octet by octet."
  (call-with-pipe
   (lambda (in out)
     (let ((told '()) (count 0))
       (with-program ()
         (let ((reader nil) (writer nil))
           (setf reader (poll in (lambda (events)
                                   (push events told)
                                   (incf count (take-octet in))
                                   (case count
                                     (5 (delay (lambda () (put-octets out 3)) :time 0.01))
                                     (8 (free-poller reader)
                                      (is-true (poller-freed-p reader)))))
                              :poll-for '(:readable))
                 writer (poll out (lambda (events)
                                    (is (equal '(:writable) events))
                                    (put-octets out 5)
                                    (cancel writer))
                              :poll-for '(:writable)))))
       (is (= 8 count))
       (is (every (lambda (events) (equal '(:readable) events)) told))
       (is (= 8 (length told)))))))

(test descriptors-at-the-end-of-a-program
  (call-with-pipe
   (fn (in _out)
     (with-program ()
       (poll in #'list :poll-for '(:readable))
       (delay #'exit-event-loop)))))
