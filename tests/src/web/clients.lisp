;;;; The clients that pages use, those of npm: connect-web by both of its protocols, and grpc-web,
;;;; in Chromium, called from a page of another origin over HTTP/1.1 in plaintext and HTTP/2 over
;;;; TLS. clients/page.js makes the calls and reports the outcome of each in words.

(in-package #:clgrpc.tests.web)

(defun file-answer (folder name)
  "The answer to a request for the file NAME in FOLDER."
  (let ((path (concatenate 'string folder "/" name)))
    (if (or (search ".." name) (not (uiop:file-exists-p path)))
        404
        (values 200
                (list (cons "content-type" (if (uiop:string-suffix-p name ".html")
                                               "text/html"
                                               "text/javascript"))
                      '("cache-control" . "max-age=3600"))
                (alexandria:read-file-into-byte-vector path)))))

(defun files-handler (place folder)
  "A handler that answers with the files of FOLDER below PLACE, a path with a slash at its end."
  (grpc:http-handler place (lambda (request)
                             (file-answer folder (subseq (grpc:http-request-path request)
                                                         (length place))))))

(defun answer-page (cancelled)
  "The handler of Ask for the page: answers with twice the number and the body, or as the number
requires. CANCELLED returns how many calls of Watch were cancelled."
  (lambda (note call)
    (case (number-of note)
      (13 (grpc:fail :not-found "no such note" :details (list (note 7))))
      (77 (note (funcall cancelled)))
      (99 call)                         ; never
      (t (note (* 2 (number-of note)) :body (lab:note-body note))))))

(defun watch-page (leave)
  "The handler of Watch for the page. It sends as many messages as the number; for -1 two and an
error; for 0 one, and then none until the caller leaves, when LEAVE is called."
  (lambda (note call)
    (let ((number (number-of note)))
      (case number
        (-1 (dotimes (i 2) (grpc:send call (note i)))
         (grpc:fail :aborted "stopped" :details (list (note 8))))
        (0 (grpc:on-end call leave)
         (grpc:send call (note 0))
         call)
        (t (dotimes (i number) (grpc:send call (note i))))))))

(defparameter *unary-outcomes*
  '(("ask" . "42") ("peek" . "8") ("error" . "5 no such note 7") ("megabyte" . "the same")
    ("deadline" . "4"))
  "What becomes of the page's unary calls.")

(defparameter *outcomes*
  (append *unary-outcomes*
          '(("thousand" . "1000 499500") ("broken" . "2, then 10 stopped 8")
            ("cancellation" . "1, then 1; the server knows")))
  "What becomes of all of its calls.")

(test clients-of-npm-in-a-browser
  "Unary calls, streams from the server, errors with details, deadlines, cancellation, a message of
a megabyte and a thousand messages; each client has the same results by each protocol and version."
  (let ((packages (support:need-web-clients)) (left (list 0)))
    (flet ((serve (origin &rest options)
             (apply #'clgrpc.tests.server:start-probe
                    (list :ask (answer-page (lambda () (car left)))
                          :watch (watch-page (lambda () (sb-ext:atomic-incf (car left))))
                          :peek #'double)
                    :protocols '(:grpc-web :connect) :origins (list origin) options)))
      (let* ((page (grpc:start-server
                    '() :http (list (files-handler "/npm/" packages)
                                    (files-handler "/" (support:root-file
                                                        "tests/src/web/clients")))))
             (origin (format nil "http://~A" (grpc:server-address page)))
             (plain (serve origin))
             (secure (serve origin :credentials (clgrpc.tests.server:certified "server"))))
        (unwind-protect
             (let ((seen (parse-json
                          (support:look-with-browser
                           "tests/src/web/clients.mjs"
                           (format nil "~A/page.html?server=http://~A&server=https://~A" origin
                                   (grpc:server-address plain) (grpc:server-address secure))))))
               (flet ((seen (name) (cdr (assoc name seen :test #'string=))))
                 (is (= 10 (length (seen "outcomes"))) "~S" seen)
                 (loop for (client . outcomes) in (seen "outcomes")
                       do (is (equal (if (uiop:string-suffix-p client "grpc-web, binary")
                                         *unary-outcomes*
                                         *outcomes*)
                                     outcomes)
                              "~A: ~S" client outcomes))))
          (mapc (lambda (server) (grpc:stop-server server :drain 0))
                (list page plain secure)))))))
