;;;; The parts of URLs.

(in-package #:clgrpc.tests.base)

(test urls-have-parts
  (loop for (text . parts)
          in '(("http://h" "h" nil "/" "http" nil)
               ("h" "h" nil "/" nil nil)
               ("h:1" "h" 1 "/" nil nil)
               ("HTTPS://H:8443/a/b?c=d#e" "H" 8443 "/a/b?c=d" "https" nil)
               ("http://h?c" "h" nil "/?c" "http" nil)
               ("http://h#c" "h" nil "/" "http" nil)
               ("http://[::1]:65535/x" "::1" 65535 "/x" "http" nil)
               ("http://[::1]" "::1" nil "/" "http" nil)
               ("http://u:p%40@h:1" "h" 1 "/" "http" "u:p%40")
               ("http://u:p@q@h/@" "h" nil "/@" "http" "u:p@q")
               ("http://@h" "h" nil "/" "http" ""))
        do (is (equal parts (multiple-value-list (split-url text))) "~A" text)))

(test urls-that-are-malformed
  (dolist (text '("" "http://" "http://:1" "http://u@" "http://h:" "http://h:0" "http://h:65536"
                  "http://h:-1" "http://h:1x" "http://::1" "http://[::1" "http://[::1]x"
                  "http://[]" "http://h]" "http://h i" "http://hé" "/a" nil 5))
    (is (null (split-url text)) "~S" text)))

(test hosts-with-their-ports
  (is (string= "h:1" (host-and-port "h" 1)))
  (is (string= "[::1]:80" (host-and-port "::1" 80))))
