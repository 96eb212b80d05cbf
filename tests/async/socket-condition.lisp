;;;; What callers and event callbacks are told, by the names of cl-async.

(in-package #:clgrpc.tests.async)

(test names-of-conditions
  (dolist (row '((socket-eof tcp-eof) (socket-reset tcp-reset) (socket-timeout tcp-timeout)
                 (connect-timeout tcp-timeout) (socket-refused tcp-refused) (socket-closed)
                 (dns-error) (socket-address-in-use)))
    (destructuring-bind (class . names) row
      (let ((condition (make-condition class)))
        (dolist (name (list* 'event-info 'event-error 'socket-info 'tcp-info 'tcp-error names))
          (is (typep condition name) "~S is no ~S" class name)))))
  (is (not (typep (make-condition 'future-cancelled :text "") 'event-info))))

(test what-conditions-tell
  (with-event-loop ()
    (let* ((server (tcp-server "127.0.0.1" 0 #'list))
           (condition (handler-case (tcp-server "127.0.0.1" (server-port server) #'list)
                        (event-error (condition) condition))))
      (is (typep condition 'socket-address-in-use))
      (is (= os:+eaddrinuse+ (event-errcode condition)))
      (is (string= (socket-error-reason condition) (event-errmsg condition)))
      (is (null (socket condition)))
      (close-tcp-server server))))
