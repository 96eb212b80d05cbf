;;;; See src/http/http2/settings.lisp; conversations are in tests/support/dialogue/connection.lisp.

(in-package #:clgrpc.tests.http2)

(test our-settings
  "Those that differ from the defaults of RFC 9113 section 6.5.2 are sent, and always the limits."
  (flet ((settings (role &rest options)
           (h2::our-settings (end-connection (connect-end role :options options)))))
    (is (equal '((3 . 1000) (6 . 16384) (4 . 2621440)) (settings :server)))
    (is (equal '((2 . 0) (6 . 2000) (5 . 20000) (1 . 0))
               (settings :client :stream-window-octets 65535 :max-header-list-octets 2000
                                 :max-frame-octets 20000 :header-table-octets 0)))))

(test setting-ranges
  "The ends of each range (6.5.2)."
  (loop for (name value code) in `((2 0 nil) (2 1 nil) (2 2 ,h2:+protocol-error+)
                                   (4 #x7FFFFFFF nil) (4 #x80000000 ,h2::+flow-control-error+)
                                   (5 16383 ,h2:+protocol-error+) (5 16384 nil)
                                   (5 16777215 nil) (5 16777216 ,h2:+protocol-error+)
                                   (1 #xFFFFFFFF nil) (3 0 nil) (6 #xFFFFFFFF nil) (99 1 nil))
        do (is (eql code (h2::setting-error name value)) "~D of ~D" name value)))

(test smaller-header-table
  "A smaller HPACK table than the default is in force once it is acknowledged."
  (let ((*dialogue* (begin-dialogue :server '(:header-table-octets 0))))
    (flush)
    (tells *preface*)
    (hears '(:settings) '(:headers 1 :post :end-stream))
    (sees '(:settings) '(:headers 1 "/greeter/hello" t))
    (hears '(:settings-ack))
    (is (not (h2:connection-closed-p (connection))))))
