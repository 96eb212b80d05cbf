(in-package #:clgrpc.tests.examples)

(defun greet (channel name)
  (helloworld:hello-reply-message
   (helloworld.greeter:say-hello channel (helloworld:make-hello-request :name name) :timeout 10)))

(test greets-by-name
  (with-service (channel (make-instance 'greeter))
    (is (string= "Hello, Ada!" (greet channel "Ada")))
    (is (string= "Hello, !" (greet channel "")))
    (is (string= "Hello, Åsa ☃!" (greet channel "Åsa ☃")))))

(test delay-is-kept
  (with-service (channel (make-instance 'greeter) :execution :inline)
    (let ((start (get-internal-real-time)))
      (is (string= "Hello, delay:80!" (greet channel "delay:80")))
      (is (<= 70/1000 (/ (- (get-internal-real-time) start) internal-time-units-per-second))))))

(test delay-holds-nobody-up
  "Inline, on one loop: while two hundred wait to be greeted, others are greeted."
  (with-service (channel (make-instance 'greeter) :execution :inline)
    (let* ((request (helloworld:make-hello-request :name "delay:1000"))
           (futures (loop repeat 200
                          collect (grpc:call-async #'helloworld.greeter:say-hello channel request
                                                   :timeout 20))))
      (is (string= "Hello, Ada!" (greet channel "Ada")))
      (is (notany #'grpc:future-done-p futures))
      (is (every (lambda (future)
                   (string= "Hello, delay:1000!"
                            (helloworld:hello-reply-message (grpc:await future))))
                 futures)))))

(test deadline-passes-before-the-greeting
  (with-service (channel (make-instance 'greeter) :execution :inline)
    (signals grpc:deadline-exceeded
      (helloworld.greeter:say-hello channel (helloworld:make-hello-request :name "delay:5000")
                                    :timeout 0.05))
    (is (string= "Hello, Ada!" (greet channel "Ada")))))

(test what-is-no-delay-is-a-name
  (dolist (name '("delay:" "delay:x" "delay:-1" "delay:1.5" "Delay:1" "delay:999999999" "delay: 1"
                  "delay:99999999999999999999"))
    (is (null (clgrpc.examples::requested-delay-ms name)) "~S" name))
  (is (eql 0 (clgrpc.examples::requested-delay-ms "delay:0")))
  (is (eql 250 (clgrpc.examples::requested-delay-ms "delay:250"))))
