;;;; Requests that nobody has sent.

(in-package #:clgrpc.tests.exchange)

(defun request-for (target &optional (headers '(("host" . "a") ("x" . "1") ("x" . "2"))))
  "A GET for TARGET with HEADERS, an alist, whose owner does nothing."
  (exchange::make-http2-request
   :responder exchange::**http2-responder** :method "GET" :target target
   :options (make-server-options)
   :sink (apply #'exchange:make-sink
                (loop for key in '(:begun :hold :finish :head-sent :done :lost :stop :stopping-p
                                   :whole :over-p :post :posted :on-end :peer :secure-p
                                   :prompt-p :measure :close :expel :closed)
                      collect key collect (constantly nil)))
   :source headers))
