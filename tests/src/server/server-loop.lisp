;;;; The links of a server loop, and its counts.

(in-package #:clgrpc.tests.server)

(test links-of-a-server-loop
  "Links come and go in any order; each is at its place."
  (with-server-loop (server-loop) (:ask #'double)
    (let ((ends (loop repeat 20 collect (comes server-loop))))
      (flet ((check (count)
               (is (= count (server::server-loop-link-count server-loop)))
               (loop for link across (server:server-loop-links server-loop)
                     for place from 0
                     do (is (= place (server::server-link-place link))))))
        (check 20)
        (loop for end in (append (subseq ends 15) (subseq ends 0 5) (subseq ends 5 15))
              for left downfrom 19
              do (memory:stop-talking memory:*world* end)
                 (is (null (link-of end server-loop)))
                 (check left))))))

(test links-that-end-while-all-are-visited
  (with-server-loop (server-loop) (:ask #'double)
    (loop repeat 10 do (comes server-loop))
    (let ((seen 0))
      (memory:call-in-world
       memory:*world*
       (lambda ()
               (server::map-links (lambda (link) (incf seen) (server::remove-link server-loop link)
                                    (server::add-link server-loop link))
                                  server-loop)))
      (is (= 10 seen))
      (is (= 10 (server::server-loop-link-count server-loop))))))

(test calls-of-a-server-loop
  "Calls count as open until they end, then as ended; requests that are not calls do not count."
  (with-server-loop (server-loop) (:ask #'double :watch #'keep-open)
    (comes server-loop)
    (asks 1 "Ask" 21)
    (answered '(1 :ok))
    (asks 3 "Watch" 1)
    (is (= 1 (server::server-loop-open server-loop)))
    (is (= 1 (server::server-loop-calls server-loop)))
    (memory:hears '(:rst-stream 3 :cancel))
    (memory:hears '(:headers 5 :get :end-stream))
    (is (string= "415" (second (assoc ":status" (third (first (memory:said)))
                                      :test #'string=))))
    (is (zerop (server::server-loop-open server-loop)))
    (is (= 2 (server::server-loop-calls server-loop)))))

(test a-plain-request-says-what-came
  "The pseudo-fields of a plain request become its method, path and host. A date that its handler
gives is the only one."
  (with-server-loop (server-loop) (:ask #'double)
    (let ((told '()))
      (answer-http server-loop (lambda (&rest request) (push request told)
                                 (values 204 '(("date" . "never")))))
      (comes server-loop)
      (memory:hears '(:headers 1 ((":method" "GET") (":scheme" "http") (":path" "/x?y")
                                  (":authority" "here:1") ("x-a" "b") ("content-type" "text/x"))
                      :end-stream))
      (memory:says '(:headers 1 ((":status" "204") ("date" "never")) :end-stream))
      (destructuring-bind ((http-method path headers body)) told
        (is (string= "GET" http-method))
        (is (string= "/x?y" path))
        (is (equal '(("host" . "here:1") ("x-a" . "b") ("content-type" . "text/x")) headers))
        (is (equalp (make-octets 0) body))))))
