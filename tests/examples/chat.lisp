;;;; The chat: what its service does, and its page, two of which talk to each other in a browser.

(in-package #:clgrpc.tests.examples)

(defun say (channel name text)
  (chat.chat:say channel (chat:make-line :name name :text text) :timeout 10))

(test all-who-have-joined-hear-what-is-said
  "Who comes later gets the last lines, in their order."
  (let ((chat (make-instance 'chat)))
    (with-service (channel chat)
      (dotimes (i 30) (say channel "Ada" (format nil "~D" i)))
      (flet ((hear (stream)
               (let ((line (grpc:receive stream)))
                 (list (chat:line-number line) (chat:line-name line) (chat:line-text line)))))
        (let ((streams (loop repeat 2
                             collect (chat.chat:join channel (chat:make-join-request)))))
          (dolist (stream streams)
            (is (equal (loop for i from 10 below 30
                             collect (list (1+ i) "Ada" (format nil "~D" i)))
                       (loop repeat 20 collect (hear stream)))))
          (is (= 31 (chat:line-number (say channel "Grace" "hello"))))
          (dolist (stream streams)
            (is (equal '(31 "Grace" "hello") (hear stream))))
          (mapc #'grpc:cancel streams)))
      (is-true (server:wait-until (lambda ()
                                    (zerop (getf (grpc:topic-statistics
                                                  (clgrpc.examples::chat-topic chat))
                                                 :subscribers))))
               "who has left is forgotten"))))

(test what-is-heard-may-be-answered-at-once
  "A caller within the image, whose callback runs on the thread of the one that speaks, may say
something as soon as it hears a line."
  (let* ((server (grpc:start-server (make-instance 'chat)))
         (channel (grpc:server-channel server))
         (heard '()))
    (unwind-protect
         (let ((stream (chat.chat:join channel (chat:make-join-request))))
           (grpc:on-message stream (lambda (line)
                                     (push (chat:line-text line) heard)
                                     (when (string= "hello" (chat:line-text line))
                                       (say channel "Grace" "hello, Ada"))))
           (is (plusp (chat:line-number (say channel "Ada" "hello"))))
           (is-true (server:wait-until (lambda () (= 2 (length heard)))))
           (is (equal '("hello, Ada" "hello") heard))
           (grpc:cancel stream))
      (grpc:close-channel channel)
      (grpc:stop-server server :drain 5))))

(test names-and-texts-have-a-length
  (with-service (channel (make-instance 'chat))
    (flet ((refused-p (name text)
             (handler-case (progn (say channel name text) nil)
               (grpc:invalid-argument () t))))
      (is-true (refused-p "" "x"))
      (is-true (refused-p "Ada" ""))
      (is-true (refused-p (make-string 41 :initial-element #\a) "x"))
      (is-true (refused-p "Ada" (make-string 1001 :initial-element #\a)))
      (is (null (refused-p (make-string 40 :initial-element #\a)
                           (make-string 1000 :initial-element #\a)))))))

(test two-pages-talk-to-each-other
  "As users start it. What somebody says stays text, in the name and in what is said."
  (support:need-program "node")
  (support:need-program "chromium" "chromium-browser" "google-chrome")
  (support:with-server-program (program address (support:clgrpc-program) "serve" "chat" "--web"
                                        "--listen" "127.0.0.1:0")
    (is (string= (format nil "page at http://~A/chat/" address) (support:program-line program)))
    (let* ((evil "<img src=x onerror=window.hacked=1>")
           (seen (clgrpc.base:parse-json (support:look-with-browser
                              "tests/examples/chat.mjs" (format nil "http://~A/chat/" address)
                              evil))))
      (flet ((seen (name) (cdr (assoc name seen :test #'string=))))
        ;; the browser's own, of the name that is refused
        (is (= 1 (length (seen "errors"))) "~S" (seen "errors"))
        (is (search "400" (aref (seen "errors") 0)))
        (is (equalp (vector "Ada: Hello, Grace!" (format nil "~A: ~:*~A" evil) "Grace: Hello, Ada!")
                    (seen "first")))
        (is (equalp (seen "first") (seen "second")))
        (is (eq :false (seen "hacked")))
        (is (eql 0 (seen "foreign")))
        (is (search "1 to 40 characters" (seen "refused")))))))
