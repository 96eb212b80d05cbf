;;;; The hello world of gRPC, with one extra: a name of the form delay:MS is greeted after MS
;;;; milliseconds. The handler then returns its call instead of a reply, which means that the answer
;;;; comes later: a timer of the call's loop gives it. No thread waits; the handler may run inline.

(in-package #:clgrpc.examples)

(defconstant +max-delay-ms+ (* 60 60 1000)
  "A name that asks for a longer delay than this hour is greeted at once.")

(defclass greeter (helloworld:greeter) ()
  (:documentation "helloworld.Greeter: greets by name, `delay:MS` after MS milliseconds."))

(defmethod helloworld.greeter:say-hello ((service greeter) request &key call)
  (let* ((name (helloworld:hello-request-name request))
         (delay-ms (requested-delay-ms name)))
    (cond (delay-ms
           (grpc:after call (/ delay-ms 1000) (lambda () (grpc:reply call (greeting name))))
           call)
          (t (greeting name)))))

(defun greeting (name)
  (helloworld:make-hello-reply :message (concatenate 'string "Hello, " name "!")))

(defun requested-delay-ms (name)
  "The milliseconds that NAME, \"delay:MS\", asks for, or nil."
  (let ((prefix "delay:"))
    (when (and (< (length prefix) (length name) (+ (length prefix) 9))
               (string= prefix name :end2 (length prefix))
               (every (lambda (char) (char<= #\0 char #\9)) (subseq name (length prefix))))
      (let ((delay-ms (parse-integer name :start (length prefix))))
        (and (<= delay-ms +max-delay-ms+) delay-ms)))))
