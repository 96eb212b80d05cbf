;;;; Values on a call, by any transport.

(in-package #:clgrpc.tests.rpc)

(test values-are-kept-by-symbol
  (let ((call (new-call)))
    (is (equal '(nil nil) (multiple-value-list (rpc:call-value call 'user))))
    (is (equal '(3 nil) (multiple-value-list (rpc:call-value call 'user 3))))
    (is (null (rpc::call-parts call)) "a look-up makes nothing")
    (is (eql 1 (setf (rpc:call-value call 'user) 1)))
    (is (equal '(1 t) (multiple-value-list (rpc:call-value call 'user 3))))
    (is (eql 5 (incf (rpc:call-value call 'count 4))))
    (setf (rpc:call-value call 'user) nil)
    (is (equal '(nil t) (multiple-value-list (rpc:call-value call 'user 3))))
    (is (equal '(nil nil) (multiple-value-list (rpc:call-value call (make-symbol "USER"))))
        "a symbol of the same name is another key")
    (is (equal '(5 t) (multiple-value-list (rpc:call-value call 'count))))
    (dolist (bad '(nil 1 "user"))
      (signals misuse (rpc:call-value call bad))
      (signals misuse (setf (rpc:call-value call bad) 1)))))

(test values-are-for-all-threads
  "Threads that set values of one call at the same time lose none, and one key has one value."
  (let ((keys (loop repeat 8 collect (gensym))))
    (loop repeat 100
          do (let* ((call (new-call))
                    (go (sb-thread:make-semaphore))
                    (threads (loop for number below 3
                                   collect (let ((number number))
                                             (in-thread
                                               (sb-thread:wait-on-semaphore go :timeout 20)
                                               (dolist (key keys)
                                                 (setf (rpc:call-value call key) number)))))))
               (sb-thread:signal-semaphore go 3)
               (mapc #'sb-thread:join-thread threads)
               (unless (and (every (lambda (key) (<= 0 (rpc:call-value call key -1) 2)) keys)
                            (= 8 (length (rpc::parts-values (rpc::call-parts call)))))
                 (fail "a value was lost or doubled")
                 (return))))
    (pass)))
