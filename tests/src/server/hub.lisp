;;;; The links of a hub, and what it counts of them.

(in-package #:clgrpc.tests.server)
(in-suite :clgrpc.server)

(test links-of-a-hub
  "Links come and go in any order; each is where its place says."
  (with-hub (hub) (:ask #'double)
    (let ((ends (loop repeat 20 collect (comes hub))))
      (flet ((check (count)
               (is (= count (server::hub-link-count hub)))
               (loop for link across (server::hub-links hub)
                     for place from 0
                     do (is (= place (server::server-link-place link))))))
        (check 20)
        (loop for end in (append (subseq ends 15) (subseq ends 0 5) (subseq ends 5 15))
              for left downfrom 19
              do (memory:stop-talking memory:*world* end)
                 (is (null (link-of end hub)))
                 (check left))))))

(test links-that-end-while-all-are-visited
  (with-hub (hub) (:ask #'double)
    (loop repeat 10 do (comes hub))
    (let ((seen 0))
      (memory:call-in-world
       memory:*world*
       (lambda () (server::map-links (lambda (link) (incf seen) (server::remove-link hub link)
                                       (server::add-link hub link))
                                     hub)))
      (is (= 10 seen))
      (is (= 10 (server::hub-link-count hub))))))

(test calls-of-a-hub
  "Calls count as open until they have ended, then as ended; requests that are none never."
  (with-hub (hub) (:ask #'double :watch #'keep-open)
    (comes hub)
    (asks 1 "Ask" 21)
    (answered '(1 :ok))
    (asks 3 "Watch" 1)
    (is (= 1 (server::hub-open hub)))
    (is (= 1 (server::hub-calls hub)))
    (memory:hears '(:rst-stream 3 :cancel))
    (memory:hears '(:headers 5 :get :end-stream))
    (is (string= "415" (second (assoc ":status" (third (first (memory:said)))
                                      :test #'string=))))
    (is (zerop (server::hub-open hub)))
    (is (= 2 (server::hub-calls hub)))))

(test a-plain-request-says-what-came
  "The pseudo-fields of a plain request become its method, its path and its host."
  (with-hub (hub) (:ask #'double)
    (let ((told '()))
      (answer-http hub (lambda (&rest request) (push request told) 204))
      (comes hub)
      (memory:hears '(:headers 1 ((":method" "GET") (":scheme" "http") (":path" "/x?y")
                                  (":authority" "here:1") ("x-a" "b") ("content-type" "text/x"))
                      :end-stream))
      (memory:says '(:headers 1 ((":status" "204")) :end-stream))
      (destructuring-bind ((http-method path headers body)) told
        (is (string= "GET" http-method))
        (is (string= "/x?y" path))
        (is (equal '(("host" . "here:1") ("x-a" . "b") ("content-type" . "text/x")) headers))
        (is (equalp (make-octets 0) body))))))
