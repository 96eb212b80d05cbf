;;;; What the console's handler answers besides events: the page, which needs nothing else, and the
;;;; options.

(in-package #:clgrpc.tests.console)

(test the-page-is-one-file
  (with-shown (console server channel)
    (multiple-value-bind (status headers body)
        (fetch server "/console/" :headers (bearer console))
      (is (= 200 status))
      (is (string= "text/html; charset=utf-8" (header "content-type" headers)))
      (is (string= "no-store" (header "cache-control" headers)))
      (is (string= "nosniff" (header "x-content-type-options" headers)))
      (is (string= "no-referrer" (header "referrer-policy" headers)))
      (is (null (search "://" body)) "it names other places")
      (is (null (search " src=" body)))
      (is (null (search "{{" body)) "a part is missing")
      (let* ((policy (header "content-security-policy" headers))
             (start (+ (search "'nonce-" policy) 7))
             (nonce (subseq policy start (position #\' policy :start start))))
        (is (= 32 (length nonce)))
        (is (string= (format nil "default-src 'none'; script-src 'nonce-~A'; style-src ~
                                  'nonce-~:*~A'; connect-src 'self'; img-src data:; ~
                                  base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
                             nonce)
                     policy))
        (is (search (format nil "<script nonce=\"~A\">" nonce) body))
        (is (search (format nil "<style nonce=\"~A\">" nonce) body))
        (is (not (search nonce (nth-value 2 (fetch server "/console/"
                                                   :headers (bearer console)))))
            "the nonce is another each time")))))

(test options-as-they-are
  (let ((console (console:make-console)))
    (with-probe (channel :server server
                 :options (list :http (list (console:console-handler console)) :max-calls 77
                                :max-receive-octets 1234))
        (:ask #'double)
      (multiple-value-bind (status headers body)
          (fetch server "/console/options" :headers (bearer console))
        (is (= 200 status))
        (is (string= "application/json" (header "content-type" headers)))
        (let* ((mine (find (grpc:server-address server) (parse-json body)
                           :key (lambda (object) (aref (in-json object "addresses") 0))
                           :test #'string=))
               (options (in-json mine "options")))
          (flet ((option (name)
                   (find name options :key (lambda (option) (in-json option "name"))
                                      :test #'string=)))
            (is (eql 77 (in-json (option "max-calls") "value")))
            (is (eq :true (in-json (option "max-calls") "changed")))
            (is (eql 1234 (in-json (option "max-receive-octets") "value")))
            (is (eq :false (in-json (option "backlog") "changed")))
            (is (string= (substitute #\Space #\Newline
                                     (option-row-reason (find-option-row :backlog)))
                         (in-json (option "backlog") "reason")))))))))

(test nothing-else-is-there
  (with-shown (console server channel)
    (is (= 404 (fetch server "/console/other" :headers (bearer console))))
    (is (= 404 (fetch server "/console" :headers (bearer console))))
    (is (= 405 (fetch server "/console/" :headers (bearer console) :method "POST")))
    (is (= 405 (fetch server "/console/events" :headers (bearer console) :method "HEAD")))
    (is (equal '(200 "")
               (multiple-value-bind (status headers body)
                   (fetch server "/console/" :headers (bearer console) :method "HEAD")
                 (declare (ignore headers))
                 (list status body))))))

(test where-to-look
  (let ((console (console:make-console :path "/a/b/")))
    (with-probe (channel :server server
                 :options (list :http (list (console:console-handler console))))
        (:ask #'double)
      (is (string= (format nil "http://~A/a/b/?token=~A" (grpc:server-address server)
                           (console::console-token console))
                   (console:console-url console server)))
      (is (= 200 (fetch server "/a/b/" :headers (bearer console))))))
  (let ((console (console:make-console :token nil)))
    (with-probe (channel :server server
                 :options (list :http (list (console:console-handler console))))
        (:ask #'double)
      (is (string= (format nil "http://~A/console/" (grpc:server-address server))
                   (console:console-url console server)))
      (is (= 200 (fetch server "/console/"))))))
